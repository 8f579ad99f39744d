# ruff: noqa: N803, N806 (tensor names bear shape suffixes)
"""The importance ratio between the policy and the one that sampled: per token, or over a datum's tokens.

Shape suffixes: N trained tokens, S datums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tinker_actors.training.loss_config import RatioLevel
from tinker_actors.training.losses.inputs import LossInputs

LOG_RATIO_LIMIT = 20.0
"""Log-ratios beyond this are held at it (a ratio of 4.9e8) and pass no gradient, so that nothing overflows."""


def safe_ratio(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """exp(logprobs - old), finite whatever the log-probs; with gradients to `logprobs_N` below the limit."""
    return (logprobs_N - old_logprobs_N).clamp(max=LOG_RATIO_LIMIT).exp()


def over_sequence(values_N: Tensor, sequences_N: Tensor, *, mean: bool) -> Tensor:
    """At each token the sum, or mean, of the values of its datum's trained tokens, shape (N,)."""
    _, places_N, counts_S = torch.unique(sequences_N, return_inverse=True, return_counts=True)
    sums_S = torch.zeros_like(values_N[: len(counts_S)]).index_add(0, places_N, values_N)
    return (sums_S / counts_S if mean else sums_S)[places_N]


def constant_ratio(inputs: LossInputs, level: RatioLevel | None) -> Tensor:
    """The ratio at each token as a weight that passes no gradient, shape (N,).

    For log-ratios l of a datum's n tokens: `token` is exp(l), `sequence_product` exp(Σ l), `sequence_mean`
    exp(Σ l / n), the geometric mean.
    """
    log_ratio_N = inputs.logprobs_N.detach() - inputs.old_logprobs_N
    if level in ("sequence_product", "sequence_mean"):
        log_ratio_N = over_sequence(log_ratio_N, inputs.sequences_N, mean=level == "sequence_mean")
    return log_ratio_N.clamp(max=LOG_RATIO_LIMIT).exp()


def held_fraction(ratio_N: Tensor, advantages_N: Tensor, bounds: tuple[float, float]) -> float:
    """Share of tokens where PPO's minimum picks the clipped term beyond a bound, so that they have no gradient."""
    low, high = bounds
    held_N = torch.where(advantages_N > 0, ratio_N > high, ratio_N < low) & (advantages_N != 0)
    return float(held_N.double().mean())
