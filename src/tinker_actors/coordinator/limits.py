"""What an episode may take, and what the failure of a seat does to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tinker_actors.environments.rules import Forfeit
from tinker_actors.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Bounds of one episode.

    Attributes:
        max_turns: Steps of the environment, where that is fewer than its own `max_turns`; beyond it the episode is
            truncated.
        turn_seconds: For the actions of one turn and the environment's answer to them, and for `reset`. Past it the
            seats that have not answered fail, or else the environment.
        seat_seconds: For one answer, by seat; past it that seat fails. Seats without one have `turn_seconds` only.
        episode_seconds: For the whole episode. Past it the episode fails: no seat is to blame.
        close_seconds: For `forfeit`, for `close` and for each agent's `finish`; past it they are given up.
        forfeit: What the failure of a seat does to the episode; None for the environment's own `forfeit_rule`.
    """

    max_turns: int | None = None
    turn_seconds: float | None = None
    seat_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    episode_seconds: float | None = None
    close_seconds: float = 5.0
    forfeit: Forfeit | None = None

    def __post_init__(self) -> None:
        if self.max_turns is not None and self.max_turns < 1:
            raise ConfigError(f"max_turns is {self.max_turns}; at least 1 is needed")
        for name in ("turn_seconds", "episode_seconds", "close_seconds"):
            if (value := getattr(self, name)) is not None:
                check_seconds(name, value)
        for seat, value in self.seat_seconds.items():
            check_seconds(f"seat_seconds[{seat!r}]", value)


def check_seconds(name: str, value: float) -> None:
    """Refuse what is no length of time to wait.

    Raises:
        ConfigError: Names the field and the value.
    """
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} is {value}; a positive number of seconds is needed")
