import os
import signal
from pathlib import Path

import pytest
import torch

from tinker_actors.actors import Mesh
from tinker_actors.errors import ConfigError, PolicyError
from tinker_actors.training import Adam8bitParams, MuonParams, Residency, Trainer
from tinker_actors.training.engine import TrainingEngine
from tinker_actors.training.policy import TrainedPolicy

POLICIES = ("a", "b", "c")


def resident(engine):
    return {info.policy_id for info in engine.policies() if info.resident}


def interleaved(engine, make, exact):
    """Three policies in turns, with gradients pending while others are used, and several in one pass."""
    params = {"a": make.adam, "b": MuonParams(learning_rate=1e-2), "c": Adam8bitParams(learning_rate=1e-2)}
    for policy, kind in zip(POLICIES, ("lora", "full", "full"), strict=True):
        engine.create(make.spec(policy, kind=kind))
    for step in range(3):
        for policy in POLICIES:
            engine.forward_backward(policy, make.batch(seed=step), make.ppo)
        for policy in POLICIES:
            engine.optim_step(policy, params[policy])
    engine.forward_backward_many([(policy, make.batch(seed=9), make.ppo) for policy in POLICIES])
    scores = [engine.forward(policy, make.batch(seed=7), make.ppo).logprobs for policy in POLICIES]
    return scores, {policy: exact.state(engine, policy) for policy in POLICIES}


@pytest.mark.parametrize("limits", [Residency(policies=1), Residency(policies=2), Residency(bytes=1)])
def test_policies_whose_state_goes_to_disk_between_uses_train_bit_for_bit_as_those_that_stay(
    make, exact, tmp_path, limits
):
    staying = interleaved(TrainingEngine("tiny-llama", tmp_path / "store"), make, exact)
    engine = TrainingEngine("tiny-llama", tmp_path / "store", resident=limits)
    going = interleaved(engine, make, exact)
    assert going[0] == staying[0]
    for policy in POLICIES:
        assert exact.same(going[1][policy], staying[1][policy])
    engine.forward("a", make.batch(), make.ppo)
    assert len(resident(engine)) == (limits.policies or 1)


def test_only_policies_that_were_used_are_measured_again(make, tmp_path, monkeypatch):
    engine = TrainingEngine("tiny-llama", tmp_path / "store", resident=Residency(bytes=2**40))
    for policy in POLICIES:
        engine.create(make.spec(policy))
    engine.forward("a", make.batch(), make.ppo)
    nbytes, measured = TrainedPolicy.nbytes, []

    def counted(policy):
        measured.append(policy.policy_id)
        return nbytes(policy)

    monkeypatch.setattr(TrainedPolicy, "nbytes", counted)
    for _ in range(3):
        engine.forward("a", make.batch(), make.ppo)
    assert set(measured) == {"a"}


def test_what_a_policy_has_gained_in_training_counts(make, tmp_path):
    measuring = TrainingEngine("tiny-llama", tmp_path / "measuring")
    for policy in POLICIES:
        measuring.create(make.spec(policy))
    fresh = [policy.nbytes() for policy in measuring._policies.held()]
    limits = Residency(bytes=sum(fresh) + fresh[0] // 2, folder=str(tmp_path))
    engine = TrainingEngine("tiny-llama", tmp_path / "store", resident=limits)
    for policy in POLICIES:
        engine.create(make.spec(policy))
    assert resident(engine) == {"a", "b", "c"}
    make.train(engine, "c", 1)
    engine.forward("a", make.batch(), make.ppo)
    assert "a" in resident(engine)
    assert resident(engine) < {"a", "b", "c"}


def test_the_policy_used_least_recently_goes_and_its_memory_is_free(make, tmp_path):
    engine = TrainingEngine("tiny-llama", tmp_path / "store", resident=Residency(policies=2, folder=str(tmp_path)))
    for policy in POLICIES:
        engine.create(make.spec(policy))
        make.train(engine, policy, 1)
    assert resident(engine) == {"b", "c"}
    assert engine._policies.held()[0].nbytes() == 0
    engine.forward("b", make.batch(), make.ppo)
    engine.publish("a")
    assert resident(engine) == {"a", "b"}
    assert [info.parameters for info in engine.policies()] == [engine.policies()[0].parameters] * 3
    engine.delete("c")
    assert [info.policy_id for info in engine.policies()] == ["a", "b"]


def test_the_policies_of_one_pass_stay_together_whatever_the_limit(make, tmp_path):
    limited = TrainingEngine("tiny-llama", tmp_path / "store", resident=Residency(policies=1))
    for policy in POLICIES:
        limited.create(make.spec(policy))
    limited.forward_backward_many([(policy, make.batch(), make.ppo) for policy in POLICIES[:2]])
    assert resident(limited) == {"a", "b"}
    limited.publish("c")
    assert resident(limited) == {"c"}


def test_a_policy_that_begins_from_a_snapshot_counts_against_the_limit(make, tmp_path):
    limited = TrainingEngine("tiny-llama", tmp_path / "store", resident=Residency(policies=1))
    limited.create(make.spec("a"))
    limited.fork(limited.publish("a").handle, policy="b")
    assert resident(limited) == {"b"}


def test_state_that_does_not_fit_on_the_disk_stays_in_memory_and_the_call_is_refused(make, exact, tmp_path):
    missing = tmp_path / "gone"
    engine = TrainingEngine("tiny-llama", tmp_path / "store", resident=Residency(policies=1, folder=str(missing)))
    engine.create(make.spec("a"))
    make.train(engine, "a", 1)
    before = exact.state(engine, "a")
    for _ in range(2):
        with pytest.raises(PolicyError, match=r"idle policy 'a' .* can't be written to .*gone"):
            engine.create(make.spec("b"))
        assert resident(engine) == {"a"}
    assert exact.same(exact.state(engine, "a"), before)
    missing.mkdir()
    engine.create(make.spec("b"))
    engine.forward("b", make.batch(), make.ppo)
    assert resident(engine) == {"b"}
    assert exact.same(exact.state(engine, "a"), before)


def test_a_killed_trainer_leaves_no_file_of_idle_policies(make, tmp_path):
    idle = tmp_path / "idle"
    idle.mkdir()
    child = os.fork()
    if child == 0:
        try:
            engine = TrainingEngine("tiny-llama", tmp_path / "store", resident=Residency(policies=1, folder=str(idle)))
            for policy in POLICIES:
                engine.create(make.spec(policy))
            if resident(engine) == {"c"} and len(_open_without_a_name(idle)) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert list(idle.iterdir()) == []


async def test_a_trainer_frees_the_disk_when_it_stops(make, tmp_path):
    async with Mesh() as mesh:
        limits = Residency(policies=1, folder=str(tmp_path))
        trainer = await mesh.spawn(Trainer, base_model="tiny-llama", store=str(tmp_path / "store"), resident=limits)
        for policy in POLICIES:
            await trainer.create(make.spec(policy))
        assert [info.resident for info in await trainer.policies()] == [False, False, True]
        assert len(_open_without_a_name(tmp_path)) == 2
    assert _open_without_a_name(tmp_path) == []


def _open_without_a_name(folder: Path) -> list[str]:
    links = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return [link for link in links if link.startswith(str(folder)) and "deleted" in link]


def test_limits_that_can_not_work_are_refused():
    with pytest.raises(ConfigError, match="resident policies is 0"):
        Residency(policies=0)
    with pytest.raises(ConfigError, match="resident bytes is -1"):
        Residency(bytes=-1)


def test_a_tensor_keeps_its_layout_on_disk():
    from tinker_actors.training.spill import SpillFile

    tensors = {
        "transposed": torch.arange(12.0).view(3, 4).t(),
        "scalar": torch.tensor(3.0, dtype=torch.bfloat16),
        "codes": torch.arange(7, dtype=torch.uint8),
        "empty": torch.empty(0, 4),
    }
    found = SpillFile(tensors, None).read()
    for name, value in tensors.items():
        assert torch.equal(found[name], value)
        assert (found[name].dtype, found[name].stride()) == (value.dtype, value.stride())
