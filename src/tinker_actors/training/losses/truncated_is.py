# ruff: noqa: N806 (tensor names bear shape suffixes)
"""Policy gradient with truncated importance weights."""

from __future__ import annotations

from torch import Tensor

from tinker_actors.training.loss_config import LossConfig
from tinker_actors.training.losses.inputs import LossInputs
from tinker_actors.training.losses.ratio import constant_ratio


def truncated_is(inputs: LossInputs, config: LossConfig) -> Tensor:
    """−sg(min(r, clip_high)) · lp · A for every trained token; sg passes no gradient, shape (N,).

    r is what `ratio` names: the token's own ratio, the product over the datum's trained tokens, or their geometric
    mean.

    Source: Ionides 2008, "Truncated Importance Sampling"; per token as in Yao et al. 2025, "Your Efficient RL Framework
    Secretly Brings You Off-Policy RL Training", per sequence as in Liu et al. 2025, "When Speed Kills Stability".
    """
    weight_N = constant_ratio(inputs, config.ratio).clamp(max=config.clip_bounds[1])
    return -weight_N * inputs.logprobs_N * inputs.advantages_N


def truncated_is_metrics(inputs: LossInputs, config: LossConfig) -> dict[str, float]:
    """`truncated_share`: share of tokens whose weight is the bound."""
    beyond_N = constant_ratio(inputs, config.ratio) > config.clip_bounds[1]
    return {"truncated_share": float(beyond_N.double().mean())}
