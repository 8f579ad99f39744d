"""What the trainer is asked and what it answers. Loads no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tinker_actors.errors import ConfigError

LossName: TypeAlias = Literal["cross_entropy", "importance_sampling", "ppo"]

LOSS_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "cross_entropy": {},
    "importance_sampling": {},
    "ppo": {"clip_low": 0.8, "clip_high": 1.2},
}
"""Every loss with its own settings and their defaults."""

SUPERVISED = frozenset({"cross_entropy"})
"""The losses that take supervised datums; the others take RL datums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """A loss and how its batch is computed; how it is split never changes its value.

    >>> LossConfig(name="ppo").clip_high
    1.2
    >>> LossConfig(name="cross_entropy", clip_high=1.2)
    Traceback (most recent call last):
    tinker_actors.errors.ConfigError: clip_high is 1.2, but cross_entropy has no such setting; its settings are []

    Attributes:
        name: Which loss.
        clip_low: Lower bound of the ratio (ppo).
        clip_high: Upper bound of the ratio (ppo).
        micro_batch_tokens: At most this many positions, padding included, in one pass; a longer example makes a pass
            of its own.
        share_prompts: Compute a prompt that several examples begin with once, where the model's attention allows.
            Log-probs equal the plain path's within 1e-4.
    """

    name: LossName
    clip_low: float | None = None
    clip_high: float | None = None
    micro_batch_tokens: int = 1024
    share_prompts: bool = True

    def __post_init__(self) -> None:
        if self.name not in LOSS_DEFAULTS:
            raise ConfigError(f"loss is {self.name!r}; the losses are {sorted(LOSS_DEFAULTS)}")
        defaults = LOSS_DEFAULTS[self.name]
        for setting in ("clip_low", "clip_high"):
            value = getattr(self, setting)
            if value is None and setting in defaults:
                object.__setattr__(self, setting, defaults[setting])
            elif value is not None and setting not in defaults:
                raise ConfigError(
                    f"{setting} is {value}, but {self.name} has no such setting; its settings are {sorted(defaults)}"
                )
        if self.clip_low is not None and self.clip_high is not None and not 0 <= self.clip_low <= 1 <= self.clip_high:
            raise ConfigError(
                f"clip_low is {self.clip_low} and clip_high is {self.clip_high}; "
                "0 <= clip_low <= 1 <= clip_high is needed"
            )
        if self.micro_batch_tokens < 1:
            raise ConfigError(f"micro_batch_tokens is {self.micro_batch_tokens}; an integer of at least 1 is needed")

    @property
    def clip_bounds(self) -> tuple[float, float]:
        """The bounds of the ratio.

        Raises:
            ConfigError: The loss doesn't clip.
        """
        if self.clip_low is None or self.clip_high is None:
            raise ConfigError(f"{self.name} doesn't clip")
        return self.clip_low, self.clip_high

    @property
    def is_supervised(self) -> bool:
        """Whether the loss takes supervised datums."""
        return self.name in SUPERVISED


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
            (targets,); 0 where the target isn't trained and so wasn't computed.
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
