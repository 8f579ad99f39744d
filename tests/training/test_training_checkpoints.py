import errno
import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save, save_file

from tinker_actors.errors import ConfigError, PolicyError, SnapshotCorruptError, UnknownPolicyError
from tinker_actors.training import AdamParams, checkpoint
from tinker_actors.training.engine import TrainingEngine
from tinker_actors.training.optimizer import PolicyOptimizer

GRADIENTS = ([1.0, 0.1], [0.5, -1.0], [-0.2, 0.3])
PARAMS = AdamParams(learning_rate=0.1, beta2=0.999)


def adam_steps(gradients, weight=None, state=None):
    parameter = torch.nn.Parameter(torch.zeros(2) if weight is None else weight.clone())
    optimizer = PolicyOptimizer({"w": parameter})
    if state:
        optimizer.load("adamw", state)
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        optimizer.step(PARAMS)
    return parameter.detach(), optimizer.state()


def test_saved_moments_make_the_third_step_that_of_an_uninterrupted_run():
    weight, state = adam_steps(GRADIENTS[:2])
    restored = load(save(state))
    resumed, _ = adam_steps(GRADIENTS[2:], weight, restored)
    whole, _ = adam_steps(GRADIENTS)
    assert torch.equal(resumed, whole)
    assert whole.tolist() == pytest.approx([-0.252889, -0.000993], abs=1e-6)
    cold, _ = adam_steps(GRADIENTS[2:], weight)
    assert cold.tolist() == pytest.approx([-0.093218, -0.132619], abs=1e-6)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_a_resumed_run_is_the_run_bit_for_bit(engine, make, exact, kind):
    engine.create(make.spec("p", kind=kind, rank=8, target_modules=("q_proj", "down_proj")))
    make.train(engine, "p", 2)
    engine.forward_backward("p", make.batch(seed=50), make.ppo)  # pending gradients are part of the state
    handle = engine.save("p", "middle")
    saved = exact.state(engine, "p")
    engine.forward_backward("p", make.batch(seed=51), make.ppo)
    engine.optim_step("p", make.adam)
    make.train(engine, "p", 2, first=60)

    later = TrainingEngine("tiny-llama", engine.store.root)
    assert later.load(handle) == "p"
    assert exact.same(exact.state(later, "p"), saved)
    later.forward_backward("p", make.batch(seed=51), make.ppo)
    later.optim_step("p", make.adam)
    make.train(later, "p", 2, first=60)
    assert exact.same(exact.state(later, "p"), exact.state(engine, "p"))
    assert later.publish("p").parent == handle


def test_weights_alone_start_cold(engine, make, exact):
    engine.create(make.spec("p"))
    make.train(engine, "p", 2)
    handle = engine.save("p", "middle")
    engine.load(handle, policy="cold", optimizer=False)
    engine.load(handle, policy="warm")
    assert exact.same(engine._policies["cold"].weights(), engine._policies["p"].weights())
    assert [(info.policy_id, info.step) for info in engine.policies()] == [("p", 2), ("cold", 0), ("warm", 2)]

    engine.create(make.spec("fresh"))
    engine._policies["fresh"].set_weights(engine._policies["p"].weights())
    for policy in ("p", "cold", "warm", "fresh"):
        make.train(engine, policy, 1, first=9)
    states = {policy: exact.state(engine, policy) for policy in ("p", "cold", "warm", "fresh")}
    assert exact.same(states["cold"], states["fresh"])
    assert exact.same(states["warm"], states["p"])
    assert not exact.same(engine._policies["cold"].weights(), engine._policies["p"].weights())


def test_loading_a_policy_in_training_winds_it_back(engine, make, exact):
    engine.create(make.spec("p"))
    make.train(engine, "p", 1)
    handle = engine.save("p", "early")
    saved = exact.state(engine, "p")
    make.train(engine, "p", 2, first=5)
    assert engine.load(handle) == "p"
    assert exact.same(exact.state(engine, "p"), saved)
    assert engine.publish("p").number == 1
    with pytest.raises(PolicyError, match="'p' is in training here already"):
        engine.load(handle, policy="p")


@pytest.mark.parametrize("name", ["weights.safetensors", "training_state.safetensors", "state.json"])
def test_an_altered_checkpoint_is_refused_and_changes_nothing(engine, make, exact, name):
    engine.create(make.spec("p"))
    handle = engine.save("p", "x")
    before = exact.state(engine, "p")
    path = Path(engine.store.get(handle).path) / name
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(SnapshotCorruptError, match=name):
        engine.load(handle)
    assert exact.same(exact.state(engine, "p"), before)


def test_what_is_no_checkpoint_of_this_base_is_refused(engine, make, tmp_path):
    engine.create(make.spec("p"))
    snapshot, handle = engine.publish("p"), engine.save("p", "x")
    with pytest.raises(PolicyError, match="is of kind sampler_weights; weights is needed"):
        engine.load(snapshot.handle)
    with pytest.raises(UnknownPolicyError, match="tinker://p/weights/y"):
        engine.load("tinker://p/weights/y")
    with pytest.raises(PolicyError, match="exists"):
        engine.save("p", "x")
    other = TrainingEngine("tiny-qwen3", engine.store.root)
    with pytest.raises(ConfigError, match="tiny-llama"):
        other.load(handle)
    assert other.policies() == ()


def _kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def _fill_the_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def _save_amid_which(engine, accident):
    """Save with a writer to which something happens after half of its tensors file."""

    def half(tensors, path):
        if Path(path).name != "training_state.safetensors":
            return save_file(tensors, path)
        content = save(tensors)
        Path(path).write_bytes(content[: len(content) // 2])
        return accident()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checkpoint, "save_file", half)
        engine.save("p", "second")


@pytest.mark.parametrize("accident", [_fill_the_disk, _kill])
def test_a_writer_that_finds_the_disk_full_or_is_killed_leaves_the_last_good_checkpoint(engine, make, exact, accident):
    engine.create(make.spec("p"))
    make.train(engine, "p", 1)
    first = engine.save("p", "first")
    saved = exact.state(engine, "p")
    make.train(engine, "p", 1, first=5)
    later = exact.state(engine, "p")
    child = os.fork() if accident is _kill else None
    if child == 0:
        try:
            _save_amid_which(engine, accident)
        finally:
            os._exit(1)
    if child is None:
        with pytest.raises(OSError, match="No space left"):
            _save_amid_which(engine, accident)
    else:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert exact.same(exact.state(engine, "p"), later)
    assert [entry.handle for entry in engine.store.list("p", "weights")] == [first]
    with pytest.raises(UnknownPolicyError):
        engine.load("tinker://p/weights/second")
    again = TrainingEngine("tiny-llama", engine.store.root)
    again.load(first)
    assert exact.same(exact.state(again, "p"), saved)
    again.load(engine.save("p", "second"))
    assert exact.same(exact.state(again, "p"), later)


def test_a_real_limit_on_the_disk_leaves_the_last_good_checkpoint(engine, make, exact):
    engine.create(make.spec("p"))
    first = engine.save("p", "first")
    saved = exact.state(engine, "p")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(Exception, match=r"(?i)file too large \(os error 27\)"):
            engine.save("p", "second")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    make.train(engine, "p", 1)
    engine.load(first)
    assert exact.same(exact.state(engine, "p"), saved)
    folder = engine.store.root / "p" / "weights"
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["first"]
