"""Losses that are a callable over log-probs: in the engine, and against trainers in any process."""

import dataclasses

import pytest
import torch

from tinker_actors.actors import Mesh
from tinker_actors.errors import AlgorithmError, DataError
from tinker_actors.training import LossConfig, Trainer, forward_backward_custom


def importance(datums, logprobs):
    """The loss importance_sampling, written by a user."""
    rows = zip(datums, logprobs, strict=True)
    loss = torch.stack(
        [-((row - torch.tensor(d.logprobs)).exp() * torch.tensor(d.advantages)).sum() for d, row in rows]
    )
    return loss.sum(), {"worst": loss.max().item()}


def preference(datums, logprobs):
    """Odd datums are rejected, even ones chosen: a loss that no sum over tokens can express."""
    sums = torch.stack([row.sum() for row in logprobs])
    return -torch.nn.functional.logsigmoid(sums[::2] - sums[1::2]).sum(), {}


def gradients(engine, policy):
    return torch.cat([value.flatten() for value in engine._policies[policy].gradients().values()])


def test_a_callable_has_the_value_and_gradient_of_the_loss_that_it_computes(engine, make):
    one, two = engine.create(make.spec("one")), engine.create(make.spec("two"))
    expected = engine.forward_backward(one, make.batch(6), LossConfig(name="importance_sampling"))
    scaled = [dataclasses.replace(datum, scale=0.25) for datum in make.batch(6)]  # of which it makes nothing
    found = engine.forward_backward_custom(two, scaled, importance)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert found.metrics["loss_sum"] == found.loss
    assert "worst" in found.metrics
    torch.testing.assert_close(gradients(engine, two), gradients(engine, one), rtol=1e-4, atol=1e-6)
    assert all(value < 0 for row in found.logprobs for value in row)


@pytest.mark.parametrize("kind", ["rl", "sft", "candidates"])
def test_a_callable_may_tie_datums_together(engine, make, kind):
    policy = engine.create(make.spec())
    datums = make.batch(4, kind="sft" if kind == "candidates" else kind)
    if kind == "candidates":
        datums = [
            dataclasses.replace(
                datum,
                weights=None,
                topk_targets=tuple((target, 70) for target in datum.targets),
                topk_weights=((0.0, 1.0),) * len(datum),
            )
            for datum in datums
        ]
    found = engine.forward_backward_custom(policy, datums, preference)
    held = engine._policies[policy]
    rows = []
    for datum in datums:
        table = torch.log_softmax(held.model(input_ids=torch.tensor([datum.model_input.tokens])).logits[0], -1)
        wanted = datum.topk_targets or [(target,) for target in datum.targets]
        rows.append(torch.stack([table[place, token] for place, some in enumerate(wanted) for token in some]))
    loss, _ = preference(datums, rows)
    assert found.loss == pytest.approx(loss.item(), rel=1e-4)
    expected = torch.autograd.grad(loss, list(held.parameters.values()))
    torch.testing.assert_close(
        gradients(engine, policy), torch.cat([value.flatten() for value in expected]), rtol=1e-3, atol=1e-5
    )


async def test_the_callable_stays_here_while_the_trainer_is_in_another_process(engine, make, tmp_path):
    held_here = []

    def loss(datums, logprobs):  # a closure over a local list: nothing that could be sent
        held_here.append(len(logprobs))
        return importance(datums, logprobs)

    expected = engine.forward_backward_custom(engine.create(make.spec("p")), make.batch(), importance)
    norm = engine.optim_step("p", make.adam).grad_norm
    async with Mesh(nodes=2) as mesh:
        store = str(tmp_path / "there")
        trainer = await mesh.spawn(Trainer, base_model="tiny-llama", store=store, threads=1, node=1)
        policy = await trainer.create(make.spec("p"))
        found = await forward_backward_custom(trainer, policy, make.batch(), loss)
        assert found == expected
        assert (await trainer.optim_step(policy, make.adam)).grad_norm == pytest.approx(norm, rel=1e-6)
    assert held_here == [6]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda datums, rows: (rows[0], {}), "one finite number"),
        (lambda datums, rows: (rows[0].sum() * float("nan"), {}), "one finite number"),
        (lambda datums, rows: (torch.tensor(1.0), {}), "doesn't depend on the log-probs"),
        (lambda datums, rows: ((rows[0] - rows[0].detach()).abs().sqrt().sum(), {}), "a gradient that isn't finite at"),
    ],
)
def test_a_callable_without_a_usable_gradient_is_refused_and_adds_nothing(engine, make, function, message):
    policy = engine.create(make.spec())
    with pytest.raises(AlgorithmError, match=message):
        engine.forward_backward_custom(policy, [make.rl([5, 6], [7, 8])], function)
    assert engine.policies()[0].pending == 0


def test_gradients_that_do_not_match_the_datums_are_refused(engine, make):
    policy = engine.create(make.spec())
    with pytest.raises(DataError, match="1 rows of gradients for 2 datums"):
        engine.backward(policy, make.batch(2), [[0.0]])
    with pytest.raises(DataError, match="1 gradients for 3 log-probs"):
        engine.backward(policy, [make.rl([5, 6], [7, 8])], [[0.0]])
