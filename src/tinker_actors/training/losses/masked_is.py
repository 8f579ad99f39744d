# ruff: noqa: N803, N806 (tensor names bear shape suffixes)
"""Policy gradient with importance weights that drops tokens, or sequences, too far off."""

from __future__ import annotations

import torch
from torch import Tensor

from tinker_actors.training.loss_config import LossConfig
from tinker_actors.training.losses.inputs import LossInputs
from tinker_actors.training.losses.ratio import constant_ratio


def masked_is(inputs: LossInputs, config: LossConfig) -> Tensor:
    """−sg(r) · lp · A where clip_low <= r <= clip_high, else 0; sg passes no gradient, shape (N,).

    r is what `ratio` names: the token's own ratio, the product over the datum's trained tokens, or their geometric
    mean.

    Source: per token Ling Team 2025, "Every Step Evolves: Scaling Reinforcement Learning for Trillion-Scale Thinking
    Model" (IcePop); per sequence Liu et al. 2025, "When Speed Kills Stability" (masked importance sampling).
    """
    ratio_N = constant_ratio(inputs, config.ratio)
    terms_N = -ratio_N * inputs.logprobs_N * inputs.advantages_N
    # where, not a product with 0: a dropped term contributes nothing whatever it was
    return torch.where(_kept(ratio_N, config), terms_N, 0.0)


def masked_is_metrics(inputs: LossInputs, config: LossConfig) -> dict[str, float]:
    """`masked_share`: share of tokens that are dropped."""
    kept_N = _kept(constant_ratio(inputs, config.ratio), config)
    return {"masked_share": float((~kept_N).double().mean())}


def _kept(ratio_N: Tensor, config: LossConfig) -> Tensor:
    low, high = config.clip_bounds
    return (ratio_N >= low) & (ratio_N <= high)
