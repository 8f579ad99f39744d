# ruff: noqa: N806 (tensor names bear shape suffixes)
"""Policy gradient weighted by a clipped ratio: every token keeps its gradient."""

from __future__ import annotations

from torch import Tensor

from tinker_actors.training.loss_config import LossConfig
from tinker_actors.training.losses.inputs import LossInputs
from tinker_actors.training.losses.ratio import constant_ratio


def cispo(inputs: LossInputs, config: LossConfig) -> Tensor:
    """−sg(clip(r, clip_low, clip_high)) · lp · A for every trained token; sg passes no gradient, shape (N,).

    Source: MiniMax 2025, "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", the CISPO
    objective; Tinker API, loss `cispo`.
    """
    weight_N = constant_ratio(inputs, "token").clamp(*config.clip_bounds)
    return -weight_N * inputs.logprobs_N * inputs.advantages_N


def cispo_metrics(inputs: LossInputs, config: LossConfig) -> dict[str, float]:
    """`clip_fraction`: share of tokens whose weight is a bound."""
    low, high = config.clip_bounds
    ratio_N = constant_ratio(inputs, "token")
    return {"clip_fraction": float(((ratio_N < low) | (ratio_N > high)).double().mean())}
