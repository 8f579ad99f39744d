"""What the trainer is asked and what it answers. Loads no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tinker_actors.errors import ConfigError
from tinker_actors.training.loss_config import LOSS_DEFAULTS, SUPERVISED, KlEstimator, LossConfig, LossName, RatioLevel

__all__ = [
    "LOSS_DEFAULTS",
    "SUPERVISED",
    "AdamParams",
    "ForwardBackwardResult",
    "KlEstimator",
    "LossConfig",
    "LossName",
    "OptimStepResult",
    "PolicyInfo",
    "RatioLevel",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamParams:
    """One step of AdamW (Loshchilov and Hutter 2019, Algorithm 2, decoupled weight decay).

    Attributes:
        learning_rate: Step size; 0 changes no weight.
        beta1: Decay of the gradient's running mean.
        beta2: Decay of the squared gradient's running mean.
        eps: Added to the root of the second moment.
        weight_decay: Each weight shrinks by learning_rate * weight_decay before the step.
        grad_clip_norm: Scale the gradient down to this global L2 norm if it is longer; None for no clipping.
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip_norm: float | None = None

    def __post_init__(self) -> None:
        for name in ("learning_rate", "eps", "weight_decay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} is {value}; a number of at least 0 is needed")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ConfigError(f"{name} is {value}; a number in [0, 1) is needed")
        if self.grad_clip_norm is not None and not (math.isfinite(self.grad_clip_norm) and self.grad_clip_norm > 0):
            raise ConfigError(f"grad_clip_norm is {self.grad_clip_norm}; a positive number or None is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackwardResult:
    """What a pass over a batch found.

    Attributes:
        loss: The sum over all trained tokens of all datums.
        logprobs: Per datum, in the order given, the natural log-prob of each target at the datum's temperature, shape
            (targets,); 0 where the target isn't trained and so wasn't computed. A datum with candidates has one per
            candidate, one target's after the other's.
        metrics: Named finite numbers over the trained tokens; see the page on training.
    """

    loss: float
    logprobs: tuple[tuple[float, ...], ...]
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimStepResult:
    """What an optimizer step did.

    Attributes:
        step: Optimizer steps that the policy has behind it now.
        grad_norm: Global L2 norm of the gradient before clipping.
    """

    step: int
    grad_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInfo:
    """A policy as its trainer holds it.

    Attributes:
        policy_id: The policy.
        base_model: The base model's name.
        kind: `lora` or `full`.
        step: Optimizer steps behind it.
        parameters: How many weights are trained.
        pending: How many forward_backward calls since the last optimizer step.
        snapshot: Handle of the last snapshot published, if any.
    """

    policy_id: str
    base_model: str
    kind: str
    step: int
    parameters: int
    pending: int
    snapshot: str | None
