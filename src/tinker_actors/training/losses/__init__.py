"""The losses, one file each; every one gives a term per trained token, and a batch's loss is their sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from tinker_actors.training.contract import LossConfig
from tinker_actors.training.losses.cross_entropy import cross_entropy
from tinker_actors.training.losses.importance_sampling import importance_sampling
from tinker_actors.training.losses.inputs import LossInputs
from tinker_actors.training.losses.ppo import ppo
from tinker_actors.training.losses.ratio import LOG_RATIO_LIMIT, safe_ratio

__all__ = [
    "LOG_RATIO_LIMIT",
    "LOSSES",
    "LossInputs",
    "cross_entropy",
    "importance_sampling",
    "loss_terms",
    "ppo",
    "safe_ratio",
]

LOSSES: Mapping[str, Callable[[LossInputs, LossConfig], Tensor]] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
}
"""Every loss by name."""


def loss_terms(inputs: LossInputs, config: LossConfig) -> Tensor:
    """The configured loss's term of every trained token, shape (N,)."""
    return LOSSES[config.name](inputs, config)
