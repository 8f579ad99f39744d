"""Losses through the whole trainer: models, micro-batches, aggregation, candidates, penalties, temperatures."""

import copy
import dataclasses

import pytest
import torch

from tinker_actors.algorithms import aggregate
from tinker_actors.data import Datum, ModelInput
from tinker_actors.errors import DataError
from tinker_actors.training import LOSS_DEFAULTS, LossConfig

RL = sorted(set(LOSS_DEFAULTS) - {"cross_entropy"})
AGGREGATIONS = ["token_sum", "token_mean", "sequence_mean", "constant"]
SPLITS = [1, 20, 64, 4096]


@pytest.fixture
def policy(engine, make):
    """A policy whose LoRA layers do something."""
    name = engine.create(make.spec())
    generator = torch.Generator().manual_seed(7)
    for parameter in engine._policies[name].parameters.values():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.05
    return name


def taken_gradients(engine, policy):
    """The pending gradients as one vector; there are none afterwards."""
    held = engine._policies[policy]
    found = torch.cat([value.flatten() for value in held.gradients().values()]).clone()
    held.set_gradients({})
    held.pending = 0
    return found


def near(engine, policy, datums, luck=0.3):
    """RL datums whose log-probs, and a reference's, lie near the policy's."""
    scored = engine.forward(policy, datums, LossConfig(name="importance_sampling")).logprobs
    generator = torch.Generator().manual_seed(2)

    def moved(row, datum):
        noise = (torch.randn(len(row), generator=generator) * luck).tolist()
        return tuple((value + change) * bit for value, change, bit in zip(row, noise, datum.mask, strict=True))

    return [
        dataclasses.replace(datum, logprobs=moved(row, datum), reference_logprobs=moved(row, datum))
        for datum, row in zip(datums, scored, strict=True)
    ]


def drawn(engine, make, policy, temperature, count=4, length=5):
    """RL datums whose tokens and log-probs the policy's model gave one after the other, a row at a time."""
    generator = torch.Generator().manual_seed(5)
    datums = []
    for number in range(count):
        prompt, action, logprobs = [5 + number] * (number + 1), [], []
        for _ in range(length + number):
            with torch.no_grad():
                logits = engine._policies[policy].model(input_ids=torch.tensor([prompt + action])).logits[0, -1]
            row = torch.log_softmax(logits / temperature, -1)
            action.append(int(torch.multinomial(row.exp(), 1, generator=generator)))
            logprobs.append(float(row[action[-1]]))
        datum = make.rl(prompt, action, (-1.0) ** number, logprobs)
        datums.append(dataclasses.replace(datum, temperature=temperature))
    return datums


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_on_policy_the_ratio_is_1_for_every_loss_and_temperature(engine, make, policy, temperature):
    datums = drawn(engine, make, policy, temperature)
    bound = 2e-6 / temperature  # by which the rounding of float32 logits is divided
    for name in RL:
        metrics = engine.forward(policy, datums, LossConfig(name=name)).metrics
        assert abs(metrics["ratio_min"] - 1) < bound
        assert abs(metrics["ratio_max"] - 1) < bound


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", ["dro", "gspo", "ppo", "truncated_is"])
def test_value_and_gradient_are_the_same_however_a_batch_is_split(engine, make, policy, name, aggregation):
    loss = LossConfig(name=name, kl_coefficient=0.1, kl_estimator="k3", entropy_coefficient=0.05)
    datums = aggregate(near(engine, policy, make.batch(9, longest=9)), aggregation, constant=16)
    found = []
    for budget in SPLITS:
        split = dataclasses.replace(loss, micro_batch_tokens=budget, share_prompts=budget > 30)
        value = engine.forward_backward(policy, datums, split).loss
        found.append((value, taken_gradients(engine, policy)))
    calls = [engine.forward_backward(policy, part, loss).loss for part in (datums[:1], datums[1:5], datums[5:])]
    found.append((sum(calls), taken_gradients(engine, policy)))
    value, gradient = found[0]
    assert float(gradient.norm()) > 0
    for other, changed in found[1:]:
        assert other == pytest.approx(value, rel=1e-5, abs=1e-6)
        torch.testing.assert_close(changed, gradient, rtol=1e-3, atol=2e-6 * float(gradient.abs().max()) + 1e-9)


def test_the_token_mean_of_4_and_three_zeros_is_1(engine, make, policy):
    four = make.rl([5, 6], [7], advantage=-4.0)
    zeros = make.rl([5], [8, 9, 10], advantage=0.0)
    (scored,) = engine.forward(policy, [four], make.ppo).logprobs
    datums = aggregate([dataclasses.replace(four, logprobs=scored), zeros], "token_mean")
    for batches in ([datums], [datums[:1], datums[1:]]):
        values = [engine.forward_backward(policy, batch, make.ppo).loss for batch in batches]
        assert sum(values) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_sum", [1, 1]),
        ("token_mean", [1 / 4, 1 / 4]),
        ("sequence_mean", [1 / 2, 1 / 6]),
        ("constant", [1 / 16] * 2),
    ],
)
def test_each_aggregation_scales_datums_by_its_formula(make, aggregation, expected):
    datums = aggregate([make.rl([5], [7]), make.rl([5], [7, 8, 9])], aggregation, constant=8)
    assert [datum.scale for datum in datums] == pytest.approx(expected)


def test_candidates_have_the_cross_entropy_of_their_distribution(engine, policy):
    datum = Datum(
        model_input=ModelInput.of([5, 6, 7]),
        targets=(6, 7, 8),
        topk_targets=((), (9, 10, 11), (12,)),
        topk_weights=((), (0.5, 0.25, 0.0), (2.0,)),
        temperature=2.0,
    )
    result = engine.forward_backward(policy, [datum], LossConfig(name="cross_entropy"))
    found = taken_gradients(engine, policy)
    exact = copy.deepcopy(engine._policies[policy].model).double()
    rows = torch.log_softmax(exact(input_ids=torch.tensor([[5, 6, 7]])).logits[0] / 2, -1)
    loss = -(0.5 * rows[1, 9] + 0.25 * rows[1, 10] + 2 * rows[2, 12])
    assert result.loss == pytest.approx(loss.item(), rel=1e-6)
    trained = [value for value in exact.parameters() if value.requires_grad]
    expected = torch.cat([value.flatten() for value in torch.autograd.grad(loss, trained)])
    # plain autograd in fp32 is 1e-6 of the gradient's norm away from fp64
    assert float((found.double() - expected).norm()) < 2e-6 * float(expected.norm())
    picked = [rows[1, 9].item(), rows[1, 10].item(), 0.0, rows[2, 12].item()]
    assert result.logprobs[0] == pytest.approx(picked, abs=2e-6)
    assert result.metrics["weight_sum"] == 2.75


def test_one_candidate_per_target_is_plain_cross_entropy(engine, make, policy):
    plain = make.batch(5, kind="sft")
    candidates = [
        dataclasses.replace(
            datum,
            weights=None,
            topk_targets=tuple((target,) for target in datum.targets),
            topk_weights=tuple((weight,) for weight in datum.weights),
        )
        for datum in plain
    ]
    first = engine.forward_backward(policy, plain, make.sft_loss)
    gradient = taken_gradients(engine, policy)
    assert engine.forward_backward(policy, candidates, make.sft_loss) == first
    assert torch.equal(taken_gradients(engine, policy), gradient)


def test_a_candidate_outside_the_vocabulary_is_refused(engine, make, policy):
    datum = Datum(
        model_input=ModelInput.of([5]),
        targets=(6,),
        topk_targets=((6, 99_999),),
        topk_weights=((0.5, 0.5),),
        where="row 3",
    )
    with pytest.raises(DataError, match=r"row 3\) has token 99999"):
        engine.forward(policy, [datum], make.sft_loss)


def test_the_entropy_bonus_has_the_gradient_of_the_mean_entropy(engine, make, policy):
    loss = LossConfig(name="importance_sampling", entropy_coefficient=0.5)
    datum = dataclasses.replace(make.rl([5, 6, 7], [8, 9], advantage=0.0), temperature=2.0)
    result = engine.forward_backward(policy, [datum], loss)
    found = taken_gradients(engine, policy)
    held = engine._policies[policy]
    logits = held.model(input_ids=torch.tensor([[5, 6, 7, 8]])).logits[0, 2:] / 2
    bonus = -0.5 * torch.distributions.Categorical(logits=logits).entropy().sum()
    assert result.loss == pytest.approx(bonus.item(), rel=1e-5)
    assert result.metrics["entropy_mean"] == pytest.approx(-bonus.item(), rel=1e-5)
    expected = torch.autograd.grad(bonus, list(held.parameters.values()))
    torch.testing.assert_close(found, torch.cat([value.flatten() for value in expected]), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_observation_tokens_never_count_in_the_kl(engine, make, policy, estimator):
    datum = make.rl([5, 6, 7], [8, 9], advantage=0.0)
    loss = LossConfig(name="ppo", kl_coefficient=1.0, kl_estimator=estimator)
    (own,) = engine.forward(policy, [datum], loss_without_kl(loss)).logprobs
    strange = tuple(value if bit else -5.0 for value, bit in zip(own, datum.mask, strict=True))
    result = engine.forward_backward(policy, [dataclasses.replace(datum, reference_logprobs=strange)], loss)
    assert result.metrics["kl_reference"] == pytest.approx(0.0, abs=1e-6)
    assert result.loss == pytest.approx(0.0, abs=1e-6)
    if estimator != "k1":  # k1's gradient is that of the log-prob itself, wherever the reference is
        assert float(taken_gradients(engine, policy).abs().max()) < 1e-6


def loss_without_kl(loss):
    return dataclasses.replace(loss, kl_coefficient=0.0)


def test_a_kl_needs_a_reference_in_every_datum(engine, make, policy):
    with pytest.raises(DataError, match=r"datum 0 .* has no reference_logprobs, but kl_coefficient is 0\.1"):
        engine.forward(policy, [make.rl([5], [6])], LossConfig(name="ppo", kl_coefficient=0.1))
