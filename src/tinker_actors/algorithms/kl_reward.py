"""KL to a reference as part of the reward: a penalty per sampled token, taken off its advantage.

The penalty of a token is coefficient · k(q, reference), with q its log-prob as sampled; it is a constant for the loss.
It counts for the token itself and not for earlier ones, so that with k1 the expected gradient on policy is that of
coefficient · KL(policy || reference) of each token's distribution (Schulman et al. 2017, "Equivalence Between Policy
Gradients and Soft Q-Learning", section 3; Ouyang et al. 2022, InstructGPT, eq. 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tinker_actors.data import Datum
from tinker_actors.errors import DataError
from tinker_actors.training import KlEstimator

# exp beyond this overflows long before it means anything: such a token's penalty is 4.9e8 times the coefficient
_LIMIT = 20.0


def kl_estimate(estimator: KlEstimator, logprob: float, reference: float) -> float:
    """An estimate of KL(policy || reference) at a token that the policy sampled (J. Schulman, 2020).

    >>> [round(kl_estimate(name, -1.0, -1.5), 6) for name in ("k1", "k2", "k3")]
    [0.5, 0.125, 0.106531]
    """
    distance = logprob - reference
    match estimator:
        case "k1":
            return distance
        case "k2":
            return 0.5 * distance * distance
        case "k3":
            return math.expm1(min(-distance, _LIMIT)) + distance


def penalised(datums: Sequence[Datum], coefficient: float, estimator: KlEstimator) -> tuple[Datum, ...]:
    """RL datums with the penalty taken off the advantage of every sampled token; observation tokens stay at 0.

    Raises:
        DataError: A datum has no reference log-probs.
    """
    return tuple(
        replace(
            datum,
            advantages=tuple(
                advantage - coefficient * penalty
                for advantage, penalty in zip(datum.advantages or (), _penalties(datum, estimator), strict=True)
            ),
        )
        for datum in datums
    )


def mean_kl(datums: Sequence[Datum], estimator: KlEstimator) -> float:
    """The mean of the estimates over all sampled tokens; 0 without any."""
    tokens = sum(datum.sampled_tokens for datum in datums)
    return math.fsum(value for datum in datums for value in _penalties(datum, estimator)) / max(tokens, 1)


def _penalties(datum: Datum, estimator: KlEstimator) -> list[float]:
    if datum.mask is None or datum.logprobs is None or datum.reference_logprobs is None:
        raise DataError(f"{datum.where}: reference_logprobs missing; a KL penalty needs RL datums that have them")
    rows = zip(datum.mask, datum.logprobs, datum.reference_logprobs, strict=True)
    return [kl_estimate(estimator, logprob, reference) if bit else 0.0 for bit, logprob, reference in rows]
