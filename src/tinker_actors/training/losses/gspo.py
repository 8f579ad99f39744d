# ruff: noqa: N806 (tensor names bear shape suffixes)
"""The clipped surrogate with one ratio for the whole sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from tinker_actors.training.loss_config import LossConfig
from tinker_actors.training.losses.inputs import LossInputs
from tinker_actors.training.losses.ratio import LOG_RATIO_LIMIT, constant_ratio, held_fraction, over_sequence


def gspo(inputs: LossInputs, config: LossConfig) -> Tensor:
    """−min(s · A, clip(s, clip_low, clip_high) · A) for every trained token, shape (N,).

    s has the value of the geometric mean of the ratios of the datum's trained tokens and the gradient of the token's
    own log-prob: s = exp(mean(sg(lp) − q) + lp − sg(lp)), where sg passes no gradient. With the aggregation
    `sequence_mean` and one advantage per sequence, value and gradient are those of GSPO.

    Source: Zheng et al. 2025, "Group Sequence Policy Optimization", section 4 (GSPO-token); Tinker API, loss `gspo`.
    """
    held_N = inputs.logprobs_N.detach()
    mean_N = over_sequence(held_N - inputs.old_logprobs_N, inputs.sequences_N, mean=True)
    ratio_N = (mean_N + inputs.logprobs_N - held_N).clamp(max=LOG_RATIO_LIMIT).exp()
    clipped_N = ratio_N.clamp(*config.clip_bounds)
    return -torch.minimum(ratio_N * inputs.advantages_N, clipped_N * inputs.advantages_N)


def gspo_metrics(inputs: LossInputs, config: LossConfig) -> dict[str, float]:
    """`clip_fraction`: share of tokens whose sequence a bound holds; `sequence_ratio_min`, `sequence_ratio_max`."""
    ratio_N = constant_ratio(inputs, "sequence_mean")
    return {
        "clip_fraction": held_fraction(ratio_N, inputs.advantages_N, config.clip_bounds),
        "sequence_ratio_max": float(ratio_N.max()),
        "sequence_ratio_min": float(ratio_N.min()),
    }
