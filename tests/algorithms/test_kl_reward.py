"""KL to a reference as part of the reward."""

from __future__ import annotations

import math

import pytest

from tinker_actors.algorithms import mean_kl, penalised
from tinker_actors.data import Datum, ModelInput
from tinker_actors.errors import DataError
from tinker_actors.training import KlEstimator


def datum(reference: tuple[float, ...] | None = (-9.0, -2.0, -9.0, -0.5)) -> Datum:
    """Observation, action, observation, action; the reference differs on the observations too."""
    return Datum(
        model_input=ModelInput.of([1, 2, 3, 4]),
        targets=(2, 3, 4, 5),
        mask=(0, 1, 0, 1),
        logprobs=(0.0, -1.0, 0.0, -1.5),
        advantages=(0.0, 2.0, 0.0, -3.0),
        reference_logprobs=reference,
        sampled_tokens=2,
        where="seat 'x'",
    )


@pytest.mark.parametrize(
    ("estimator", "penalties"),
    [("k1", (1.0, -1.0)), ("k2", (0.5, 0.5)), ("k3", (math.exp(-1), math.exp(1) - 2))],
)
def test_each_sampled_token_pays_for_itself_and_no_observation_does(
    estimator: KlEstimator, penalties: tuple[float, float]
):
    (found,) = penalised([datum()], 0.1, estimator)
    expected = (0.0, 2.0 - 0.1 * penalties[0], 0.0, -3.0 - 0.1 * penalties[1])
    assert found.advantages == pytest.approx(expected, abs=1e-12)
    assert mean_kl([datum()], estimator) == pytest.approx(sum(penalties) / 2)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_an_observation_difference_alone_costs_nothing(estimator: KlEstimator):
    same_actions = datum((-9.0, -1.0, -7.0, -1.5))
    assert mean_kl([same_actions], estimator) == 0.0
    assert penalised([same_actions], 0.1, estimator)[0].advantages == same_actions.advantages


def test_a_hopeless_reference_leaves_the_penalty_finite():
    (found,) = penalised([datum((0.0, 1000.0, 0.0, -1000.0))], 1.0, "k3")
    assert all(math.isfinite(value) for value in found.advantages or ())


def test_without_reference_log_probs_there_is_no_penalty_to_compute():
    with pytest.raises(DataError, match="seat 'x': reference_logprobs missing"):
        mean_kl([datum(None)], "k1")
