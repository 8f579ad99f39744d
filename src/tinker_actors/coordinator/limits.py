"""What an episode may take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinker_actors.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Bounds of one episode.

    Attributes:
        max_turns: Steps of the environment, where that is fewer than its own `max_turns`; beyond it the episode is
            truncated.
        turn_seconds: For the actions of one turn and the environment's answer to them, and for `reset`. Past it the
            episode fails.
        episode_seconds: For the whole episode. Past it the episode fails.
        close_seconds: For `close` and for each agent's `finish`; past it they are given up and a warning is logged.
    """

    max_turns: int | None = None
    turn_seconds: float | None = None
    episode_seconds: float | None = None
    close_seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.max_turns is not None and self.max_turns < 1:
            raise ConfigError(f"max_turns is {self.max_turns}; at least 1 is needed")
        for name in ("turn_seconds", "episode_seconds", "close_seconds"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} is {value}; a positive number of seconds is needed")
