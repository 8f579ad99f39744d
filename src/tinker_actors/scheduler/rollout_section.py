"""The `[rollouts]` of a run: how its episodes are collected, within which limits."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from tinker_actors.coordinator import EpisodeLimits
from tinker_actors.environments import Forfeit
from tinker_actors.errors import ConfigError
from tinker_actors.rollouts import Retries
from tinker_actors.scheduler.sections import Section


class RolloutSection(Section):
    """How episodes are collected."""

    tasks_per_step: int = Field(default=16, ge=1)
    group_size: int = Field(default=8, ge=1)
    max_tokens: int = Field(default=16, ge=1)
    """New tokens per turn."""
    temperature: float = Field(default=1.0, gt=0)
    stop: tuple[str, ...] = ()
    """Stop strings, besides the model's own stop tokens."""
    filter: Literal["none", "varied_rewards"] = "none"
    """`varied_rewards` plays further tasks in place of groups whose rewards are all equal."""
    max_rounds: int = Field(default=8, ge=1)
    """How often `filter` may play further tasks in one step before the run ends with an error."""
    workers: int = Field(default=2, ge=0)
    """Child processes that run environments; 0 runs them in this process."""
    lockstep: Literal["step", "group", "off"] = "step"
    """Which episodes wait for each other before each action, so that what the sampler computes together, and with it
    every bit, is fixed by the plan; `off` samples whatever is there."""
    submit_ahead: int = Field(default=0, ge=0)
    """How many steps' rollouts may be played while earlier steps are trained on; 0 plays and trains in turns."""
    max_staleness: int | None = Field(default=None, ge=0)
    """Most optimizer steps between the snapshot that sampled a trajectory and a step that it trains. Rollouts wait so
    that none exceeds it; if not given, it is what `submit_ahead` comes to."""
    refresh: Literal["episode", "turn"] = "episode"
    """Whether an episode that is under way when a snapshot is published stays on its own or goes on with the new one
    from its next turn."""
    turn_timeout: float = Field(default=60.0, gt=0)
    """Seconds for one action and the environment's answer to it."""
    episode_timeout: float = Field(default=300.0, gt=0)
    """Seconds."""
    seat_timeouts: dict[str, float] = Field(default_factory=dict[str, float])
    """Seconds for one answer, by seat of the environment; past them that seat fails, and `forfeit` says what that is
    worth. A seat without an entry has `turn_timeout`."""
    failed_retries: int = Field(default=0, ge=0)
    """How often an episode that failed by itself is played again, with the same luck, before it counts as failed."""
    rotate_seats: bool = False
    """Whether the players move on by one seat from group to group, so that a policy learns every side of a game."""
    forfeit: Literal["environment", "loss", "draw", "drop"] = "environment"
    """What becomes of an episode in which a seat fails: what its environment says; a `loss` for that seat; a `draw`;
    or `drop` it, as one that failed."""
    transcripts_per_step: int = Field(default=8, ge=0)
    """Episodes of each step that are written to rollouts.jsonl; failed ones always are."""

    @field_validator("seat_timeouts")
    @classmethod
    def _check_seconds(cls, value: dict[str, float]) -> dict[str, float]:
        try:
            EpisodeLimits(seat_seconds=value)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return value

    @property
    def retries(self) -> Retries:
        """What is tried again."""
        return Retries(failed=self.failed_retries)

    @property
    def limits(self) -> EpisodeLimits:
        """The bounds of each episode, and what a seat's failure does to it."""
        return EpisodeLimits(
            turn_seconds=self.turn_timeout,
            episode_seconds=self.episode_timeout,
            seat_seconds=self.seat_timeouts,
            forfeit=None if self.forfeit == "environment" else Forfeit(self.forfeit),
        )
