"""Which loss, with which settings. Loads no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tinker_actors.errors import ConfigError
from tinker_actors.own_settings import fill_own_settings

LossName: TypeAlias = Literal[
    "cross_entropy",
    "importance_sampling",
    "ppo",
    "dual_clip_ppo",
    "cispo",
    "dro",
    "gspo",
    "truncated_is",
    "masked_is",
]
RatioLevel: TypeAlias = Literal["token", "sequence_product", "sequence_mean"]
"""What an importance ratio is taken over: one token; all of a datum's tokens, multiplied; their geometric mean."""
KlEstimator: TypeAlias = Literal["k1", "k2", "k3"]

LOSS_DEFAULTS: Mapping[str, Mapping[str, float | str]] = {
    "cross_entropy": {},
    "importance_sampling": {},
    "ppo": {"clip_low": 0.8, "clip_high": 1.2},
    "dual_clip_ppo": {"clip_low": 0.8, "clip_high": 1.2, "dual_clip": 3.0},
    "cispo": {"clip_low": 0.0, "clip_high": 4.0},
    "dro": {"beta": 0.05},
    "gspo": {"clip_low": 1 - 3e-4, "clip_high": 1 + 4e-4},
    "truncated_is": {"clip_high": 2.0, "ratio": "token"},
    "masked_is": {"clip_low": 0.5, "clip_high": 5.0, "ratio": "token"},
}
"""Every loss with its own settings and their defaults."""

SUPERVISED = frozenset({"cross_entropy"})
"""The losses that take supervised datums; the others take RL datums."""

_SETTINGS = ("clip_low", "clip_high", "dual_clip", "beta", "ratio")
_RATIOS, _ESTIMATORS = ("token", "sequence_product", "sequence_mean"), ("k1", "k2", "k3")
_API_NAMES = {"clip_low_threshold": "clip_low", "clip_high_threshold": "clip_high"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """A loss and how its batch is computed; how it is split never changes its value.

    >>> LossConfig(name="ppo").clip_high
    1.2
    >>> LossConfig(name="cross_entropy", clip_high=1.2)
    Traceback (most recent call last):
    tinker_actors.errors.ConfigError: clip_high is 1.2, but cross_entropy has no such setting; it has none

    Attributes:
        name: Which loss.
        clip_low: Lower bound of the ratio (ppo, dual_clip_ppo, cispo, gspo, masked_is).
        clip_high: Upper bound of the ratio (those and truncated_is).
        dual_clip: Bound of the ratio where the advantage is negative, above 1 (dual_clip_ppo).
        beta: Weight of the squared log-ratio (dro).
        ratio: What the ratio is taken over (truncated_is, masked_is).
        kl_coefficient: Adds this times the KL estimate of every token to an RL loss; the datums need
            `reference_logprobs`.
        kl_estimator: Which estimate of KL(policy || reference).
        entropy_coefficient: Subtracts this times the entropy in nats at every token from an RL loss, with gradients.
        value_coefficient: Adds this times the value head's loss at every token to an RL loss; the policy needs a value
            head, and the datums `returns`.
        value_clip: How far a value may move from the datum's `values` in that loss; None for no bound.
        micro_batch_tokens: At most this many positions in one pass (padding included, where the model's attention
            allows no packing); a longer example makes a pass of its own.
        share_prompts: Compute a prompt that several examples begin with once, where the model's attention allows.
            Log-probs equal the plain path's within 1e-4.
        gradient_checkpointing: Keep what enters each layer only and compute the rest again in the backward pass: a
            fraction of the memory for a third more time; bit-identical gradients.
    """

    name: LossName
    clip_low: float | None = None
    clip_high: float | None = None
    dual_clip: float | None = None
    beta: float | None = None
    ratio: RatioLevel | None = None
    kl_coefficient: float = 0.0
    kl_estimator: KlEstimator = "k3"
    entropy_coefficient: float = 0.0
    value_coefficient: float = 0.0
    value_clip: float | None = None
    micro_batch_tokens: int = 1024
    share_prompts: bool = True
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        if self.name not in LOSS_DEFAULTS:
            raise ConfigError(f"loss is {self.name!r}; the losses are {sorted(LOSS_DEFAULTS)}")
        fill_own_settings(self, _SETTINGS, LOSS_DEFAULTS[self.name])
        self._check_settings()
        self._check_extras()

    @classmethod
    def from_settings(cls, name: LossName, settings: Mapping[str, Any]) -> LossConfig:
        """A config from a mapping, such as the Tinker API's `loss_fn_config` with its names of settings.

        >>> LossConfig.from_settings("ppo", {"clip_high_threshold": 1.3}).clip_high
        1.3

        Raises:
            ConfigError: A setting is unknown, or belongs to another loss.
        """
        known = {_API_NAMES.get(key, key): value for key, value in settings.items()}
        offered = {*LOSS_DEFAULTS.get(name, ()), *cls.__dataclass_fields__} - {"name"}
        for key in known:
            if key not in offered:
                raise ConfigError(
                    f"{key} is {known[key]!r}, but {name} has no such setting; known are {sorted(offered)}"
                )
        return cls(name=name, **known)

    @property
    def clip_bounds(self) -> tuple[float, float]:
        """The bounds of the ratio; 0 below where the loss bounds it from above only.

        Raises:
            ConfigError: The loss doesn't clip.
        """
        if self.clip_high is None:
            raise ConfigError(f"{self.name} doesn't clip")
        return self.clip_low or 0.0, self.clip_high

    @property
    def is_supervised(self) -> bool:
        """Whether the loss takes supervised datums."""
        return self.name in SUPERVISED

    def _check_settings(self) -> None:
        for setting in ("clip_low", "clip_high", "dual_clip", "beta"):
            value = getattr(self, setting)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{setting} is {value}; a finite number of at least 0 is needed")
        if self.clip_high is not None and not (self.clip_low or 0.0) <= 1 <= self.clip_high:
            raise ConfigError(
                f"clip_low is {self.clip_low} and clip_high is {self.clip_high}; "
                "0 <= clip_low <= 1 <= clip_high is needed"
            )
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ConfigError(f"dual_clip is {self.dual_clip}; a number above 1 is needed")
        if self.ratio is not None and self.ratio not in _RATIOS:
            raise ConfigError(f"ratio is {self.ratio!r}; one of {_RATIOS} is needed")

    def _check_extras(self) -> None:
        for setting in ("kl_coefficient", "entropy_coefficient", "value_coefficient"):
            value = getattr(self, setting)
            if not math.isfinite(value) or (setting != "entropy_coefficient" and value < 0):
                raise ConfigError(f"{setting} is {value}; a finite number, for a penalty at least 0, is needed")
            if value and self.is_supervised:
                raise ConfigError(f"{setting} is {value}, but {self.name} has no such setting; RL losses do")
        if self.value_clip is not None and not (math.isfinite(self.value_clip) and self.value_clip > 0):
            raise ConfigError(f"value_clip is {self.value_clip}; a positive number or None is needed")
        if self.value_clip is not None and not self.value_coefficient:
            raise ConfigError(f"value_clip is {self.value_clip}, but value_coefficient is 0; no value loss is computed")
        if self.kl_estimator not in _ESTIMATORS:
            raise ConfigError(f"kl_estimator is {self.kl_estimator!r}; one of {_ESTIMATORS} is needed")
        if self.micro_batch_tokens < 1:
            raise ConfigError(f"micro_batch_tokens is {self.micro_batch_tokens}; an integer of at least 1 is needed")
