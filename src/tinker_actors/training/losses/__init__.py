"""The losses, one file each; every one gives a term per trained token, and a batch's loss is their sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from tinker_actors.training.loss_config import LossConfig
from tinker_actors.training.losses.cispo import cispo, cispo_metrics
from tinker_actors.training.losses.cross_entropy import cross_entropy
from tinker_actors.training.losses.dro import dro
from tinker_actors.training.losses.dual_clip_ppo import dual_clip_ppo, dual_clip_ppo_metrics
from tinker_actors.training.losses.gspo import gspo, gspo_metrics
from tinker_actors.training.losses.importance_sampling import importance_sampling
from tinker_actors.training.losses.inputs import LossInputs
from tinker_actors.training.losses.kl import reference_kl
from tinker_actors.training.losses.masked_is import masked_is, masked_is_metrics
from tinker_actors.training.losses.ppo import ppo, ppo_metrics
from tinker_actors.training.losses.ratio import LOG_RATIO_LIMIT, safe_ratio
from tinker_actors.training.losses.truncated_is import truncated_is, truncated_is_metrics
from tinker_actors.training.losses.value import value_loss, value_metrics

__all__ = [
    "LOG_RATIO_LIMIT",
    "LOSSES",
    "LOSS_METRICS",
    "LossInputs",
    "cispo",
    "cross_entropy",
    "dro",
    "dual_clip_ppo",
    "gspo",
    "importance_sampling",
    "loss_terms",
    "masked_is",
    "ppo",
    "reference_kl",
    "safe_ratio",
    "truncated_is",
    "value_loss",
    "value_metrics",
]

LOSSES: Mapping[str, Callable[[LossInputs, LossConfig], Tensor]] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "dual_clip_ppo": dual_clip_ppo,
    "cispo": cispo,
    "dro": dro,
    "gspo": gspo,
    "truncated_is": truncated_is,
    "masked_is": masked_is,
}
"""Every loss by name."""

LOSS_METRICS: Mapping[str, Callable[[LossInputs, LossConfig], dict[str, float]]] = {
    "ppo": ppo_metrics,
    "dual_clip_ppo": dual_clip_ppo_metrics,
    "cispo": cispo_metrics,
    "gspo": gspo_metrics,
    "truncated_is": truncated_is_metrics,
    "masked_is": masked_is_metrics,
}
"""What a loss reports besides the metrics that all have, for those that report anything."""


def loss_terms(inputs: LossInputs, config: LossConfig) -> Tensor:
    """The configured loss's term of every trained token and what is added to it, shape (N,).

    scale · (term + kl_coefficient · kl − entropy_coefficient · entropy + value_coefficient · value loss). The bonus is
    that of Williams and Peng 1991, "Function Optimization Using Connectionist Reinforcement Learning Algorithms".
    """
    terms = LOSSES[config.name](inputs, config)
    if config.kl_coefficient:
        terms = terms + config.kl_coefficient * reference_kl(inputs, config.kl_estimator)
    if config.entropy_coefficient:
        terms = terms - config.entropy_coefficient * inputs.entropy_N
    if config.value_coefficient:
        terms = terms + config.value_coefficient * value_loss(inputs, config.value_clip)
    return inputs.scales_N * terms
