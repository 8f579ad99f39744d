import dataclasses
import doctest
import math
import random

import plain_losses
import pytest
import torch

from tinker_actors.errors import ConfigError
from tinker_actors.training import LOSS_DEFAULTS, AdamParams, LossConfig, loss_config
from tinker_actors.training.losses import LOSSES, LossInputs, loss_terms, reference_kl
from tinker_actors.training.losses.gspo import gspo_metrics
from tinker_actors.training.losses.ratio import constant_ratio
from tinker_actors.training.metrics import batch_metrics

NAMES = sorted(LOSSES)
RL = [name for name in NAMES if name != "cross_entropy"]
LEVELS = ["token", "sequence_product", "sequence_mean"]
CONFIGS = [LossConfig(name=name) for name in NAMES if "ratio" not in LOSS_DEFAULTS[name]]
CONFIGS += [LossConfig(name=name, ratio=level) for name in ("truncated_is", "masked_is") for level in LEVELS]
SMOOTH = ["cross_entropy", "dro", "dual_clip_ppo", "importance_sampling", "ppo"]
"""Losses whose gradient is that of their value; the others hold a part of it constant."""


def label(config):
    return f"{config.name}-{config.ratio}" if config.ratio else config.name


def inputs(logprobs, old, advantages, weights=None, sequences=None, dtype=torch.float64, **rows):
    def tensor(row):
        return torch.tensor(row, dtype=dtype)

    none = [0.0] * len(logprobs)
    return LossInputs(
        logprobs_N=tensor(logprobs).requires_grad_(),
        entropy_N=tensor(rows.get("entropy", none)),
        old_logprobs_N=tensor(old),
        advantages_N=tensor(advantages),
        weights_N=tensor(weights or none),
        reference_logprobs_N=tensor(rows.get("reference", none)),
        scales_N=tensor(rows.get("scales", [1.0] * len(logprobs))),
        sequences_N=torch.tensor(sequences or [0] * len(logprobs)),
    )


def random_inputs(count=64, seed=0, spread=0.3):
    """Datums of 1 to 7 tokens, numbered with gaps and out of order; weights, advantages and ratios on either side."""
    luck = random.Random(seed)
    sequences = [number for number in luck.sample(range(count), count) for _ in range(luck.randrange(1, 8))][:count]
    old = [luck.gauss(-2, 1) for _ in range(count)]
    logprobs = [value + luck.gauss(0, spread) for value in old]
    return inputs(
        logprobs,
        old,
        [luck.gauss(0, 1) for _ in range(count)],
        [luck.gauss(0, 1) for _ in range(count)],
        sequences,
        reference=[value + luck.gauss(0, spread) for value in old],
        entropy=[luck.uniform(0, 3) for _ in range(count)],
        scales=[luck.uniform(0.1, 2) for _ in range(count)],
    )


def plain_rows(batch):
    return {
        "logprobs": batch.logprobs_N.tolist(),
        "held": batch.logprobs_N.tolist(),
        "old": batch.old_logprobs_N.tolist(),
        "advantages": batch.advantages_N.tolist(),
        "weights": batch.weights_N.tolist(),
        "sequences": batch.sequences_N.tolist(),
    }


def settings_of(config):
    return {name: getattr(config, name) for name in LOSS_DEFAULTS[config.name]}


@pytest.mark.parametrize("config", CONFIGS, ids=label)
def test_every_loss_equals_its_formula_in_double_precision(config):
    batch = random_inputs()
    rows = plain_rows(batch)
    expected = [
        scale * plain_losses.term(config.name, index, rows, settings_of(config))
        for index, scale in enumerate(batch.scales_N.tolist())
    ]
    torch.testing.assert_close(
        loss_terms(batch, config).detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize("config", CONFIGS, ids=label)
def test_every_loss_has_the_gradient_of_its_formula(config):
    # gspo's bounds are so narrow that only ratios near 1 have a gradient
    batch = random_inputs(24, seed=3, spread=1e-4 if config.name == "gspo" else 0.3)
    batch = dataclasses.replace(batch, scales_N=torch.ones_like(batch.scales_N))
    rows = plain_rows(batch)
    loss_terms(batch, config).sum().backward()
    expected = [plain_losses.slope(config.name, index, rows, settings_of(config)) for index in range(24)]
    assert any(expected)
    torch.testing.assert_close(batch.logprobs_N.grad, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", SMOOTH)
def test_autograd_agrees_with_difference_quotients(name):
    batch = random_inputs(16, seed=3)

    def total(logprobs):
        return loss_terms(dataclasses.replace(batch, logprobs_N=logprobs), LossConfig(name=name)).sum()

    assert torch.autograd.gradcheck(total, (batch.logprobs_N,), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", RL)
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_kl_to_a_reference_is_added_to_every_rl_loss(name, estimator):
    batch = random_inputs(16, seed=5)
    config = LossConfig(name=name, kl_coefficient=0.3, kl_estimator=estimator)
    kl = [
        plain_losses.kl(estimator, *pair)
        for pair in zip(batch.logprobs_N.tolist(), batch.reference_logprobs_N.tolist(), strict=True)
    ]
    added = (loss_terms(batch, config) - loss_terms(batch, LossConfig(name=name))) / batch.scales_N
    torch.testing.assert_close(added.detach(), 0.3 * torch.tensor(kl, dtype=torch.float64), rtol=1e-11, atol=1e-11)
    assert batch_metrics(batch, 0.0, 1, config)["kl_reference"] == pytest.approx(sum(kl) / 16)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_kl_has_the_gradient_of_its_formula(estimator):
    batch = random_inputs(16, seed=5)

    def total(logprobs):
        return reference_kl(dataclasses.replace(batch, logprobs_N=logprobs), estimator).sum()

    assert torch.autograd.gradcheck(total, (batch.logprobs_N,), eps=1e-6, atol=1e-7)


def test_in_expectation_k2_pulls_as_the_exact_kl_does_and_k1_does_not_pull():
    logits = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.0, 0.5, 0.1], dtype=torch.float64), -1)

    def gradient(weigh):
        logprobs = torch.log_softmax(logits, -1)
        return torch.autograd.grad(weigh(logprobs), logits)[0]

    def expected(estimator):
        def weigh(logprobs):
            seen = dataclasses.replace(
                inputs([0.0] * 3, [0.0] * 3, [0.0] * 3), logprobs_N=logprobs, reference_logprobs_N=reference
            )
            return (logprobs.detach().exp() * reference_kl(seen, estimator)).sum()

        return gradient(weigh)

    exact = gradient(lambda logprobs: (logprobs.exp() * (logprobs - reference)).sum())
    torch.testing.assert_close(expected("k2"), exact)
    torch.testing.assert_close(expected("k1"), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)


def test_an_entropy_bonus_is_subtracted_and_the_scale_multiplies_all():
    batch = random_inputs(8)
    bonus = LossConfig(name="ppo", entropy_coefficient=0.1)
    without = dataclasses.replace(batch, scales_N=torch.ones_like(batch.scales_N))
    expected = batch.scales_N * (loss_terms(without, LossConfig(name="ppo")) - 0.1 * batch.entropy_N)
    torch.testing.assert_close(loss_terms(batch, bonus), expected)


def test_200_tokens_of_log_ratio_a_hundredth_make_the_ratio_that_the_config_names():
    batch = inputs([0.01 - 1.0] * 200, [-1.0] * 200, [1.0] * 200)
    found = {level: float(constant_ratio(batch, level)[0]) for level in LEVELS}
    assert found == pytest.approx({"token": 1.01005, "sequence_product": 7.38906, "sequence_mean": 1.01005}, abs=1e-5)
    assert gspo_metrics(batch, LossConfig(name="gspo"))["sequence_ratio_max"] == pytest.approx(1.01005, abs=1e-5)


@pytest.mark.parametrize("level", LEVELS)
def test_a_rejected_token_of_log_ratio_1000_contributes_nothing(level):
    batch = inputs([-1.0, -1.0], [-1001.0, -1.0], [1.0, 1.0], sequences=[0, 1], dtype=torch.float32)
    terms = loss_terms(batch, LossConfig(name="masked_is", ratio=level))
    terms.sum().backward()
    assert terms.tolist() == [0.0, 1.0]
    assert batch.logprobs_N.grad.tolist() == [0.0, -1.0]


def test_dual_clip_bounds_what_a_negative_advantage_can_cost():
    batch = inputs([math.log(2.0), math.log(50.0), math.log(50.0)], [0.0] * 3, [-1.0, -1.0, 1.0])
    terms = loss_terms(batch, LossConfig(name="dual_clip_ppo"))
    assert terms.tolist() == pytest.approx([2.0, 3.0, -1.2])
    terms.sum().backward()
    assert batch.logprobs_N.grad.tolist() == pytest.approx([2.0, 0.0, 0.0])
    metrics = batch_metrics(batch, 0.0, 1, LossConfig(name="dual_clip_ppo"))
    assert metrics["dual_clip_fraction"] == metrics["clip_fraction"] == pytest.approx(1 / 3)


def test_shares_of_bounded_and_dropped_tokens_are_counted():
    ratios = [0.25, 0.9, 3.0, 6.0]
    batch = inputs([math.log(ratio) for ratio in ratios], [0.0] * 4, [1.0] * 4)

    def metrics(name, **settings):
        return batch_metrics(batch, 0.0, 1, LossConfig(name=name, **settings))

    assert metrics("truncated_is")["truncated_share"] == 0.5
    assert metrics("masked_is")["masked_share"] == 0.5
    assert metrics("cispo")["clip_fraction"] == 0.25
    assert metrics("cispo", clip_low=0.5)["clip_fraction"] == 0.5


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


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "dual_clip_ppo", "gspo", "masked_is"])
@pytest.mark.parametrize("advantage", [0.0, 1.0, -1.0])
def test_a_log_ratio_of_1000_stays_finite_and_has_no_gradient(name, advantage):
    batch = inputs([0.0, -1.0], [-1000.0, -1.0], [advantage, 1.0], sequences=[0, 1], dtype=torch.float32)
    terms = loss_terms(batch, LossConfig(name=name))
    terms.sum().backward()
    assert batch.logprobs_N.grad is not None
    assert torch.isfinite(terms).all()
    assert batch.logprobs_N.grad.tolist() == [0.0, -1.0]
    if advantage == 0:
        assert float(terms[0].detach().abs()) == 0.0


@pytest.mark.parametrize("config", CONFIGS, ids=label)
@pytest.mark.parametrize("log_ratio", [1000.0, -1000.0])
def test_every_loss_and_its_metrics_stay_finite_on_hopeless_ratios(config, log_ratio):
    logprob, old = min(log_ratio, 0.0), min(-log_ratio, 0.0)
    batch = inputs([logprob, -1.0], [old, -1.0], [-1.0, 1.0], reference=[old, -1.0], dtype=torch.float32)
    if not config.is_supervised:
        config = dataclasses.replace(config, kl_coefficient=0.1)
    terms = loss_terms(batch, config)
    terms.sum().backward()
    assert torch.isfinite(terms).all()
    assert torch.isfinite(batch.logprobs_N.grad).all()
    assert all(math.isfinite(value) for value in batch_metrics(batch, 0.0, 1, config).values())


def test_the_examples_in_the_docstrings_hold():
    found = doctest.testmod(loss_config)
    assert (found.failed, found.attempted > 0) == (0, True)


def test_the_config_knows_exactly_the_losses_that_exist():
    assert sorted(LOSS_DEFAULTS) == NAMES
    with pytest.raises(ConfigError, match="'pppo'"):
        LossConfig(name="pppo")


@pytest.mark.parametrize("name", ["cross_entropy", "importance_sampling", "dro"])
@pytest.mark.parametrize("setting", ["clip_low", "clip_high", "dual_clip"])
def test_settings_of_another_loss_are_refused(name, setting):
    with pytest.raises(ConfigError, match=f"{setting} is 1.0, but {name}"):
        LossConfig(name=name, **{setting: 1.0})


@pytest.mark.parametrize(
    "settings",
    [
        {"clip_low": 1.1},
        {"clip_high": 0.9},
        {"clip_low": -0.1},
        {"clip_high": float("inf")},
        {"dual_clip": 1.0},
        {"kl_coefficient": -0.1},
        {"kl_estimator": "k4"},
        {"entropy_coefficient": float("nan")},
        {"micro_batch_tokens": 0},
    ],
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        LossConfig(name="dual_clip_ppo", **settings)


def test_a_level_of_ratio_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="ratio is 'sequence'; one of"):
        LossConfig(name="truncated_is", ratio="sequence")


@pytest.mark.parametrize("setting", ["kl_coefficient", "entropy_coefficient"])
def test_supervised_losses_take_no_penalty(setting):
    with pytest.raises(ConfigError, match=f"{setting} is 0.1, but cross_entropy"):
        LossConfig(name="cross_entropy", **{setting: 0.1})


def test_a_mapping_of_settings_takes_the_names_of_the_api_and_no_unknown_one():
    bounds = {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0}
    assert LossConfig.from_settings("cispo", bounds).clip_bounds == (0.5, 2.0)
    with pytest.raises(ConfigError, match=r"betta is 0\.1, but dro has no such setting"):
        LossConfig.from_settings("dro", {"betta": 0.1})
    with pytest.raises(ConfigError, match=r"clip_low is 0\.5, but dro has no such setting"):
        LossConfig.from_settings("dro", bounds)


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
    batch = inputs(
        [math.log(0.5), math.log(0.2), math.log(0.4)], [math.log(0.4)] * 3, [1.0, 1.0, -1.0], entropy=[1.0, 2.0, 3.0]
    )
    metrics = batch_metrics(batch, -1.0, 2, LossConfig(name="ppo"))
    ratios = [1.25, 0.5, 1.0]
    assert metrics["kl_k1"] == pytest.approx(sum(-math.log(ratio) for ratio in ratios) / 3)
    assert metrics["kl_k3"] == pytest.approx(sum(ratio - 1 - math.log(ratio) for ratio in ratios) / 3)
    assert metrics["ratio_mean"] == pytest.approx(2.75 / 3)
    assert metrics["ratio_max"] == pytest.approx(1.25)
    assert metrics["clip_fraction"] == pytest.approx(1 / 3)  # 0.5 with a positive advantage isn't held by its bound
    assert (metrics["entropy_mean"], metrics["datums"], metrics["tokens"]) == (2.0, 2.0, 3.0)
