"""Which advantage estimator, with which settings. Loads no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tinker_actors.algorithms.turn_returns import BaselineOver, DiscountPer
from tinker_actors.errors import ConfigError
from tinker_actors.own_settings import fill_own_settings

AdvantageName: TypeAlias = Literal[
    "grpo",
    "grpo_no_std",
    "dr_grpo",
    "rloo",
    "leave_one_out",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "max_rl",
    "pass_at_k",
    "turn_returns",
    "role_baseline",
    "gae",
]

ADVANTAGE_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    **{name: {} for name in get_args(AdvantageName)},
    "pass_at_k": {"pass_k": 4},
    "turn_returns": {"discount": 1.0, "discount_per": "turn", "baseline": "group"},
    "role_baseline": {"baseline_decay": 0.95},
    "gae": {"discount": 1.0, "discount_per": "token", "trace_decay": 0.95, "normalise": True},
}
"""Every estimator with its own settings and their defaults."""

ADVANTAGE_SETTINGS = ("discount", "discount_per", "trace_decay", "normalise", "baseline", "baseline_decay", "pass_k")
"""The names of all settings."""

_BATCH_BASELINES = frozenset({"reinforce_pp", "role_baseline", "gae"})
_CHOICES = {"discount_per": get_args(DiscountPer), "baseline": get_args(BaselineOver)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageConfig:
    """An estimator and its settings.

    >>> AdvantageConfig(name="gae").trace_decay
    0.95
    >>> AdvantageConfig(name="grpo", discount=0.9)
    Traceback (most recent call last):
    tinker_actors.errors.ConfigError: discount is 0.9, but grpo has no such setting; it has none

    Attributes:
        name: Which estimator.
        discount: What a reward is multiplied by for each turn or action token before it, 0 to 1 (turn_returns, gae).
        discount_per: Which of the two (turn_returns, gae).
        trace_decay: Lambda, 0 to 1 (gae).
        normalise: Whether advantages get mean 0 and standard deviation 1 over the batch's action tokens (gae).
        baseline: Whether returns are compared within the group or over the batch (turn_returns).
        baseline_decay: How much of a running baseline remains after a trajectory, 0 to below 1 (role_baseline).
        pass_k: k, at least 2 (pass_at_k).
    """

    name: AdvantageName
    discount: float | None = None
    discount_per: DiscountPer | None = None
    trace_decay: float | None = None
    normalise: bool | None = None
    baseline: BaselineOver | None = None
    baseline_decay: float | None = None
    pass_k: int | None = None

    def __post_init__(self) -> None:
        if self.name not in ADVANTAGE_DEFAULTS:
            raise ConfigError(f"name is {self.name!r}; one of {', '.join(ADVANTAGE_DEFAULTS)} is needed")
        fill_own_settings(self, ADVANTAGE_SETTINGS, ADVANTAGE_DEFAULTS[self.name])
        self._check()

    def _check(self) -> None:
        for setting in ("discount", "trace_decay", "baseline_decay"):
            value = getattr(self, setting)
            if value is not None and not (math.isfinite(value) and 0 <= value <= 1):
                raise ConfigError(f"{setting} is {value}; a number from 0 to 1 is needed")
        if self.baseline_decay == 1:
            raise ConfigError("baseline_decay is 1, so that the baseline would never move; a number below 1 is needed")
        for setting, choices in _CHOICES.items():
            value = getattr(self, setting)
            if value is not None and value not in choices:
                raise ConfigError(f"{setting} is {value!r}; one of {choices} is needed")
        if self.pass_k is not None and self.pass_k < 2:
            raise ConfigError(f"pass_k is {self.pass_k}; an integer of at least 2 is needed")

    @property
    def least_group(self) -> int:
        """The smallest group_size with which something can be learned."""
        if self.pass_k is not None:
            return self.pass_k
        return 1 if self.name in _BATCH_BASELINES or self.baseline == "batch" else 2

    @property
    def needs_values(self) -> bool:
        """Whether the policy needs a value head."""
        return self.name == "gae"

    def settings(self) -> dict[str, Any]:
        """The estimator's own settings with their values."""
        return {setting: getattr(self, setting) for setting in ADVANTAGE_DEFAULTS[self.name]}
