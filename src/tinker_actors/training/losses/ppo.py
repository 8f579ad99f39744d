# ruff: noqa: N806 (tensor names bear shape suffixes)
"""The clipped surrogate of PPO."""

from __future__ import annotations

import torch
from torch import Tensor

from tinker_actors.training.loss_config import LossConfig
from tinker_actors.training.losses.inputs import LossInputs
from tinker_actors.training.losses.ratio import held_fraction, safe_ratio


def ppo(inputs: LossInputs, config: LossConfig) -> Tensor:
    """−min(r · A, clip(r, clip_low, clip_high) · A) for every trained token, with r = exp(lp − q), shape (N,).

    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", eq. 7, with separate bounds as in the
    Tinker API's loss `ppo`.
    """
    ratio_N = safe_ratio(inputs.logprobs_N, inputs.old_logprobs_N)
    clipped_N = ratio_N.clamp(*config.clip_bounds)
    return -torch.minimum(ratio_N * inputs.advantages_N, clipped_N * inputs.advantages_N)


def ppo_metrics(inputs: LossInputs, config: LossConfig) -> dict[str, float]:
    """`clip_fraction`: share of tokens that a bound holds."""
    ratio_N = safe_ratio(inputs.logprobs_N, inputs.old_logprobs_N)
    return {"clip_fraction": held_fraction(ratio_N, inputs.advantages_N, config.clip_bounds)}
