# ruff: noqa: N806 (tensor names bear shape suffixes)
"""PPO with a second bound where the advantage is negative."""

from __future__ import annotations

import torch
from torch import Tensor

from tinker_actors.errors import ConfigError
from tinker_actors.training.loss_config import LossConfig
from tinker_actors.training.losses.inputs import LossInputs
from tinker_actors.training.losses.ppo import ppo, ppo_metrics
from tinker_actors.training.losses.ratio import safe_ratio


def dual_clip_ppo(inputs: LossInputs, config: LossConfig) -> Tensor:
    """−max(min(r · A, clip(r) · A), c · A) where A < 0, PPO's term elsewhere; c is `dual_clip`, shape (N,).

    A token that became much likelier although its advantage is negative has r · A without a bound in PPO; here c · A
    bounds it, and beyond that it has no gradient.

    Source: Ye et al. 2020, "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning", the dual-clipped
    PPO objective.
    """
    terms_N = ppo(inputs, config)
    bounded_N = torch.minimum(terms_N, -_bound(config) * inputs.advantages_N)
    return torch.where(inputs.advantages_N < 0, bounded_N, terms_N)


def dual_clip_ppo_metrics(inputs: LossInputs, config: LossConfig) -> dict[str, float]:
    """PPO's, and `dual_clip_fraction`: share of tokens that the second bound holds."""
    ratio_N = safe_ratio(inputs.logprobs_N, inputs.old_logprobs_N)
    held_N = (inputs.advantages_N < 0) & (ratio_N > _bound(config))
    return {**ppo_metrics(inputs, config), "dual_clip_fraction": float(held_N.double().mean())}


def _bound(config: LossConfig) -> float:
    if config.dual_clip is None:
        raise ConfigError(f"{config.name} has no dual_clip")
    return config.dual_clip
