"""Value heads: what they say, what they learn, and that they stay with their policy."""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tinker_actors.data import rl_datums
from tinker_actors.errors import ConfigError, DataError, PolicyError
from tinker_actors.models import load_base
from tinker_actors.training import LossConfig
from tinker_actors.training.batching import examples_of, padded
from tinker_actors.training.engine import TrainingEngine
from tinker_actors.training.losses import LossInputs, value_loss
from tinker_actors.training.passes import run_alone
from tinker_actors.training.scoring import run_padded

PPO = LossConfig(name="ppo", value_coefficient=0.5, value_clip=0.2)


def valued(make, count=6, seed=0):
    """Datums of two turns with returns, and values of before."""
    luck = random.Random(seed)
    datums = []
    for _ in range(count):
        prompt = [luck.randrange(7, 60) for _ in range(luck.randrange(1, 9))]
        first, tool, second = ([luck.randrange(7, 60) for _ in range(luck.randrange(1, 4))] for _ in range(3))
        turns = [(prompt, first, None), ([*prompt, *first, *tool], second, None)]

        advantages, returns, values = (
            [[luck.uniform(low, high) for _ in action] for action in (first, second)]
            for low, high in ((-1, 1), (0, 1), (0.2, 0.5))
        )
        datums += rl_datums(make.trajectory(*turns), advantages, returns=returns, values=values)
    return datums


def wake(engine, policy, seed=7):
    """Weights other than the initial ones, in all that the policy trains."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in engine._policies[policy].parameters.values():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.05


def create(engine, make, name="a", **changes):
    policy = engine.create(make.spec(name, value_head=True, **changes))
    wake(engine, policy)
    return policy


def plain_values(engine, policy, datum):
    """w · h + b from the hidden states that transformers gives for the datum alone."""
    held = engine._policies[policy]
    decoder = held.model.get_decoder()
    with torch.no_grad():
        hidden = decoder(input_ids=torch.tensor([datum.model_input.tokens]), use_cache=False).last_hidden_state[0]
        weight, bias = held.parameters["value_head.weight"], held.parameters["value_head.bias"]
        return (hidden @ weight[0] + bias).tolist()


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_values_are_those_of_the_tokens_before_each_action(engine, make, kind):
    policy = create(engine, make, kind=kind)
    datums = valued(make)
    found = engine.forward(policy, datums, PPO).values
    assert found is not None
    for datum, row in zip(datums, found, strict=True):
        expected = [
            value if bit else 0.0 for bit, value in zip(datum.mask, plain_values(engine, policy, datum), strict=True)
        ]
        assert row == pytest.approx(expected, abs=1e-5)


def test_padded_and_packed_passes_agree(engine, make):
    policy = create(engine, make, kind="full")
    held, datums = engine._policies[policy], valued(make)
    both = []
    for way in ("packed", "padded"):
        work = engine._work(policy, datums, PPO)
        examples = examples_of(datums)
        with held.accumulating():
            if way == "packed":
                found = run_alone(work, engine._pack(examples, PPO), backward=True, proceed=lambda: None)
            else:
                found = run_padded(work, [padded(examples)], backward=True, proceed=lambda: None)
        both.append((found, {name: value.clone() for name, value in held.gradients().items()}))
        held.set_gradients({})
    (packed, gradients), (plain, others) = both
    assert list(itertools.chain(*packed.values)) == pytest.approx(list(itertools.chain(*plain.values)), abs=1e-5)
    assert packed.metrics["value_loss"] == pytest.approx(plain.metrics["value_loss"], rel=1e-5)
    for name in gradients:
        torch.testing.assert_close(gradients[name], others[name], atol=1e-5, rtol=1e-4)


def inputs(values, returns, old):
    rows = [torch.tensor(row, dtype=torch.float64) for row in (values, returns, old)]
    none = torch.zeros(len(values), dtype=torch.float64)
    return LossInputs(
        logprobs_N=none,
        entropy_N=none,
        weights_N=none,
        old_logprobs_N=none,
        advantages_N=none,
        reference_logprobs_N=none,
        scales_N=none + 1,
        sequences_N=none.long(),
        values_N=rows[0].requires_grad_(),
        returns_N=rows[1],
        old_values_N=rows[2],
    )


def test_the_value_loss_by_hand():
    # within the bound; past it towards its return; past it away from its return; no bound
    rows = [0.6, 0.9, 0.0], [1.0, 1.0, 1.0], [0.5, 0.5, 0.5]
    assert value_loss(inputs(*rows), 0.2).tolist() == pytest.approx([0.08, 0.045, 0.5])
    assert value_loss(inputs(*rows), None).tolist() == pytest.approx([0.08, 0.005, 0.5])
    held = inputs(*rows)
    value_loss(held, 0.2).sum().backward()
    assert held.values_N.grad.tolist() == pytest.approx([-0.4, 0.0, -1.0])


@pytest.mark.parametrize("clip", [None, 0.2])
def test_its_gradient_is_that_of_its_value(clip):
    luck = random.Random(0)
    rows = [[luck.uniform(-1, 1) for _ in range(32)] for _ in range(3)]
    held = inputs(*rows)
    assert torch.autograd.gradcheck(
        lambda values: value_loss(dataclasses.replace(held, values_N=values), clip), held.values_N
    )


def test_a_split_batch_has_the_same_value_gradient(engine, make):
    datums = [dataclasses.replace(datum, scale=0.1 * (index + 1)) for index, datum in enumerate(valued(make))]
    found = []
    for name, budget in (("a", 1024), ("b", 1)):
        policy = create(engine, make, name)
        loss = dataclasses.replace(PPO, micro_batch_tokens=budget, share_prompts=False)
        found.append((engine.forward_backward(policy, datums, loss).loss, engine._policies[policy].gradients()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    for name, value in found[0][1].items():
        torch.testing.assert_close(value, found[1][1][name], atol=1e-6, rtol=1e-4)
    values = sum(
        datum.scale * 0.5 * 0.5 * (at - target) ** 2
        for datum, row in zip(datums, engine.forward("a", datums, PPO).values, strict=True)
        for at, target, bit in zip(row, datum.returns, datum.mask, strict=True)
        if bit
    )
    with_values = engine.forward("a", datums, dataclasses.replace(PPO, value_clip=None)).loss
    without = engine.forward("a", datums, LossConfig(name="ppo")).loss
    assert with_values - without == pytest.approx(values, rel=1e-6)


def test_a_value_head_learns_what_it_is_trained_towards(engine, make):
    policy = engine.create(make.spec("a", value_head=True))
    good, bad = make.trajectory(([8, 9], [10, 11], None)), make.trajectory(([20, 21], [22, 23], None))
    datums = [
        *rl_datums(good, 0.0, returns=[[1.0, 1.0]], values=[[0.0, 0.0]]),
        *rl_datums(bad, 0.0, returns=[[-1.0, -1.0]], values=[[0.0, 0.0]]),
    ]
    loss = LossConfig(name="ppo", value_coefficient=1.0)
    first = engine.forward(policy, datums, loss)
    assert set(itertools.chain(*first.values)) == {0.0}
    for _ in range(60):
        engine.forward_backward(policy, datums, loss)
        engine.optim_step(policy, make.adam)
    last = engine.forward(policy, datums, loss)
    assert last.metrics["value_loss"] < 0.01 * first.metrics["value_loss"]
    assert last.metrics["value_explained"] > 0.98


def train(engine, policy, make, steps, first=0):
    for step in range(first, first + steps):
        engine.forward_backward(policy, valued(make, seed=step), PPO)
        engine.optim_step(policy, make.adam)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_a_checkpoint_holds_the_value_head_and_goes_on_as_if_never_left(engine, make, exact, tmp_path, kind):
    policy = create(engine, make, kind=kind)
    train(engine, policy, make, 2)
    engine.forward_backward(policy, valued(make, seed=9), PPO)
    handle = engine.save(policy, "two")
    saved = exact.state(engine, policy)
    assert any(name.startswith("optimizer/") and "value_head" in name for name in saved)
    engine.optim_step(policy, make.adam)
    train(engine, policy, make, 1, first=2)
    other = TrainingEngine(engine.base_model, tmp_path / "store")
    other.load(handle)
    assert exact.same(exact.state(other, policy), saved)
    other.optim_step(policy, make.adam)
    train(other, policy, make, 1, first=2)
    assert exact.same(exact.state(other, policy), exact.state(engine, policy))


def test_snapshots_and_exports_know_nothing_of_it(engine, make, tmp_path):
    names = {}
    for kind in ("lora", "full"):
        policy = create(engine, make, kind, kind=kind)
        files = [*Path(engine.publish(policy).path).glob("*.safetensors")]
        exported = [*Path(engine.export_base(policy, tmp_path / kind)).glob("*.safetensors")]
        for file in (*files, *exported):
            with safe_open(file, "pt") as tensors:
                names[file] = list(tensors.keys())
    assert len(names) == 4
    assert not [name for found in names.values() for name in found if "value" in name.replace("v_proj", "")]


def test_stepping_one_policy_leaves_the_head_of_another_alone(engine, make, exact):  # A3
    create(engine, make, "a")
    create(engine, make, "b", rank=8)
    engine.forward_backward("b", valued(make, seed=5), PPO)
    before = exact.state(engine, "b")
    base = {name: value.clone() for name, value in load_base(engine.base_model).model.named_parameters()}
    train(engine, "a", make, 2)
    assert exact.same(exact.state(engine, "b"), before)
    assert all(torch.equal(value, base[name]) for name, value in load_base(engine.base_model).model.named_parameters())


def test_a_shared_pass_gives_each_its_own_values(engine, make, exact):
    plain = engine.create(make.spec("plain"))
    wake(engine, plain)
    for name in ("a", "b"):
        create(engine, make, name, rank=4 if name == "a" else 8)
    batches = [("a", valued(make, seed=1), PPO), ("plain", make.batch(), make.ppo), ("b", valued(make, seed=2), PPO)]
    together = engine.forward_backward_many(batches)
    gradients = {name: exact.state(engine, name) for name, _, _ in batches}
    assert together[1].values is None
    for (name, datums, loss), found in zip(batches, together, strict=True):
        held = engine._policies[name]
        held.set_gradients({})
        held.pending = 0
        assert engine.forward_backward(name, datums, loss) == found
        assert exact.same(exact.state(engine, name), gradients[name])


def test_what_can_not_have_values_is_refused(engine, make):
    policy = engine.create(make.spec("a"))
    with pytest.raises(PolicyError, match=r"'a' has no value head, but value_coefficient is 0.5"):
        engine.forward_backward(policy, valued(make), PPO)
    headed = create(engine, make, "b")
    with pytest.raises(DataError, match=r"datum 0 .* has no returns, but value_coefficient is 0.5"):
        engine.forward_backward(headed, make.batch(), PPO)
    with pytest.raises(DataError, match="has no values"):
        engine.forward_backward(headed, [dataclasses.replace(valued(make)[0], values=None)], PPO)
    with pytest.raises(ConfigError, match="value_coefficient is 1"):
        LossConfig(name="cross_entropy", value_coefficient=1.0)
    with pytest.raises(ConfigError, match=r"value_clip is 0.2, but value_coefficient is 0"):
        LossConfig(name="ppo", value_clip=0.2)
