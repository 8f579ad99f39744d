import doctest
import math

import pytest
import torch

from tinker_actors.errors import ConfigError
from tinker_actors.training import LOSS_DEFAULTS, AdamParams, LossConfig, contract
from tinker_actors.training.losses import LOSSES, LossInputs, loss_terms
from tinker_actors.training.metrics import batch_metrics

NAMES = sorted(LOSSES)


def inputs(logprobs, old, advantages, weights=None, dtype=torch.float64):
    def tensor(row):
        return torch.tensor(row, dtype=dtype)

    return LossInputs(
        logprobs_N=tensor(logprobs).requires_grad_(),
        old_logprobs_N=tensor(old),
        advantages_N=tensor(advantages),
        weights_N=tensor(weights or [0.0] * len(logprobs)),
    )


def random_inputs(count=64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(scale):
        return (torch.randn(count, generator=generator, dtype=torch.float64) * scale).tolist()

    old = draw(1.0)
    logprobs = [value + change for value, change in zip(old, draw(0.3), strict=True)]
    return inputs(logprobs, old, draw(1.0), draw(1.0))


def plain_term(name, logprob, old, advantage, weight, low=0.8, high=1.2):
    """The formulas again, on floats."""
    ratio = math.exp(logprob - old)
    if name == "cross_entropy":
        return -weight * logprob
    if name == "importance_sampling":
        return -ratio * advantage
    clipped = low if ratio < low else high if ratio > high else ratio
    return -min(ratio * advantage, clipped * advantage)


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_equals_its_formula_in_double_precision(name):
    batch = random_inputs()
    rows = [
        row.tolist() for row in (batch.logprobs_N.detach(), batch.old_logprobs_N, batch.advantages_N, batch.weights_N)
    ]
    expected = [plain_term(name, *values) for values in zip(*rows, strict=True)]
    torch.testing.assert_close(
        loss_terms(batch, LossConfig(name=name)).detach(),
        torch.tensor(expected, dtype=torch.float64),
        rtol=1e-13,
        atol=1e-13,
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_has_the_gradient_of_its_formula(name):
    batch = random_inputs(16, seed=3)

    def total(logprobs):
        changed = LossInputs(
            logprobs_N=logprobs,
            old_logprobs_N=batch.old_logprobs_N,
            advantages_N=batch.advantages_N,
            weights_N=batch.weights_N,
        )
        return loss_terms(changed, LossConfig(name=name)).sum()

    assert torch.autograd.gradcheck(total, (batch.logprobs_N,), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("ratio", "advantage", "term"),
    [(1.5, 1.0, -1.2), (0.5, 1.0, -0.5), (1.5, -1.0, 1.5), (0.5, -1.0, 0.8), (1.0, 2.0, -2.0)],
)
def test_ppo_is_pessimistic_on_either_side(ratio, advantage, term):
    batch = inputs([math.log(ratio)], [0.0], [advantage])
    assert float(loss_terms(batch, LossConfig(name="ppo")).detach()) == pytest.approx(term, abs=1e-12)


def test_ppo_takes_bounds_of_its_own():
    batch = inputs([math.log(2.0)], [0.0], [1.0])
    assert float(loss_terms(batch, LossConfig(name="ppo", clip_high=1.28)).detach()) == pytest.approx(-1.28, abs=1e-12)


@pytest.mark.parametrize("name", ["importance_sampling", "ppo"])
@pytest.mark.parametrize("advantage", [0.0, 1.0, -1.0])
def test_a_log_ratio_of_1000_stays_finite_and_has_no_gradient(name, advantage):
    batch = inputs([0.0, -1.0], [-1000.0, -1.0], [advantage, 1.0], dtype=torch.float32)
    terms = loss_terms(batch, LossConfig(name=name))
    terms.sum().backward()
    assert batch.logprobs_N.grad is not None
    assert torch.isfinite(terms).all()
    assert batch.logprobs_N.grad.tolist() == [0.0, -1.0]
    if advantage == 0:
        assert float(terms[0].detach().abs()) == 0.0


@pytest.mark.parametrize("name", ["importance_sampling", "ppo"])
def test_a_log_ratio_of_minus_1000_stays_finite(name):
    batch = inputs([-1000.0], [0.0], [-1.0], dtype=torch.float32)
    terms = loss_terms(batch, LossConfig(name=name))
    terms.sum().backward()
    assert torch.isfinite(terms).all()
    assert batch.logprobs_N.grad.tolist() == [0.0]


def test_the_examples_in_the_docstrings_hold():
    found = doctest.testmod(contract)
    assert (found.failed, found.attempted > 0) == (0, True)


def test_the_config_knows_exactly_the_losses_that_exist():
    assert sorted(LOSS_DEFAULTS) == NAMES
    with pytest.raises(ConfigError, match="'pppo'"):
        LossConfig(name="pppo")


@pytest.mark.parametrize("name", ["cross_entropy", "importance_sampling"])
@pytest.mark.parametrize("setting", ["clip_low", "clip_high"])
def test_settings_of_another_loss_are_refused(name, setting):
    with pytest.raises(ConfigError, match=f"{setting} is 1.0, but {name}"):
        LossConfig(name=name, **{setting: 1.0})


@pytest.mark.parametrize(
    "settings", [{"clip_low": 1.1}, {"clip_high": 0.9}, {"clip_low": -0.1}, {"micro_batch_tokens": 0}]
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        LossConfig(name="ppo", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": -1.0},
        {"learning_rate": float("nan")},
        {"beta1": 1.0},
        {"beta2": -0.1},
        {"eps": -1e-8},
        {"weight_decay": float("inf")},
        {"grad_clip_norm": 0.0},
    ],
)
def test_optimizer_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        AdamParams(**{"learning_rate": 1e-3, **settings})


def test_the_kl_estimates_and_clip_fraction_are_those_of_their_definitions():
    batch = inputs([math.log(0.5), math.log(0.2), math.log(0.4)], [math.log(0.4)] * 3, [1.0, 1.0, -1.0])
    metrics = batch_metrics(batch, torch.tensor([1.0, 2.0, 3.0]), -1.0, 2, LossConfig(name="ppo"))
    ratios = [1.25, 0.5, 1.0]
    assert metrics["kl_k1"] == pytest.approx(sum(-math.log(ratio) for ratio in ratios) / 3)
    assert metrics["kl_k3"] == pytest.approx(sum(ratio - 1 - math.log(ratio) for ratio in ratios) / 3)
    assert metrics["ratio_mean"] == pytest.approx(2.75 / 3)
    assert metrics["ratio_max"] == pytest.approx(1.25)
    assert metrics["clip_fraction"] == pytest.approx(1 / 3)  # 0.5 with a positive advantage isn't held by its bound
    assert (metrics["entropy_mean"], metrics["datums"], metrics["tokens"]) == (2.0, 2.0, 3.0)


def test_metrics_stay_finite_on_hopeless_ratios():
    batch = inputs([0.0, -1000.0], [-1000.0, 0.0], [1.0, 1.0])
    metrics = batch_metrics(batch, torch.zeros(2), 0.0, 1, LossConfig(name="ppo"))
    assert all(math.isfinite(value) for value in metrics.values())
