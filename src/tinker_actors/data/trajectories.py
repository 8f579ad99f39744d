"""Turns, trajectories, episodes and groups: what a rollout yields, for every seat and every kind of agent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tinker_actors.data.endings import EpisodeEnd, TurnEnd
from tinker_actors.data.inputs import ModelInput
from tinker_actors.data.messages import Message
from tinker_actors.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRecord:
    """How a turn's action was sampled.

    Attributes:
        snapshot_min: Handle of the oldest snapshot that sampled a token of the action.
        snapshot_max: Handle of the newest one; equal unless the policy was refreshed mid-turn.
        snapshot_step: Update steps that the oldest of them had behind it.
        temperature: The divisor of the logits; log-probs are under the resulting distribution. 0 means greedy.
        top_p: Nucleus mass; 1 when off.
        top_k: Number of candidates; -1 when off.
        seed: The request's seed, or None if it had none.
    """

    snapshot_min: str
    snapshot_max: str
    snapshot_step: int
    temperature: float
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One observation and the action that answered it, in tokens.

    Attributes:
        observation: What was appended to the tokens already held; the whole prompt if `restarts`.
        action: The sampled token ids, the sampled stop token included. Empty if nothing was sampled.
        logprobs: Natural log-prob of each action token under the distribution really sampled from, shape
            (len(action),); None where no policy sampled (scripts, people).
        end: Why the action stopped.
        reward: The reward that this action earned.
        restarts: Whether the observation is a whole prompt that doesn't continue the tokens held before.
        messages: The observation as messages.
        text: The action as text, as the environment received it.
        sampling: How it was sampled; None where no policy sampled.
    """

    observation: ModelInput
    action: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    end: TurnEnd
    reward: float = 0.0
    restarts: bool = False
    messages: tuple[Message, ...] = ()
    text: str = ""
    sampling: SamplingRecord | None = None

    def __post_init__(self) -> None:
        if self.logprobs is not None:
            if len(self.logprobs) != len(self.action):
                raise DataError(f"logprobs has {len(self.logprobs)} entries for {len(self.action)} action tokens")
            _require_finite("logprobs", self.logprobs)
        if not math.isfinite(self.reward):
            raise DataError(f"reward is {self.reward}; a finite number is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The turns of one seat in one episode.

    Attributes:
        seat: The seat.
        policy: The policy's id; None for scripts and people.
        turns: In order.
        end: How the episode ended for this seat: as the episode did, or `FAILED` for a seat that forfeited it.
        trainable: Whether these turns may enter datums and statistics; False for frozen seats.
        windfall: What a seat was given that never came to act; no turn earned it.
    """

    seat: str
    policy: str | None
    turns: tuple[Turn, ...]
    end: EpisodeEnd
    trainable: bool = True
    windfall: float = 0.0

    @property
    def reward(self) -> float:
        """The sum over turns, and the windfall."""
        return math.fsum(turn.reward for turn in self.turns) + self.windfall

    @property
    def action_tokens(self) -> int:
        """How many tokens were sampled."""
        return sum(len(turn.action) for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What every episode of a group shares.

    Attributes:
        environment: The environment's name.
        seed: Names the task within the environment; given to `reset`.
    """

    environment: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One run of an environment: a trajectory per seat.

    Attributes:
        id: Unique in the run; the id of the rollout that made it.
        task: The task.
        end: How it ended.
        trajectories: One per seat that took part; may be partial if the episode failed.
        error: For a failed or forfeited episode, one line that says what raised and where.
        metrics: Named numbers that the environment reported.
        traceback: Of what user code raised first, the closing of an episode that hasn't failed included, with its
            causes; the middle is cut from one of more than 32,000 characters. A rollout worker leaves it out where it
            has told of the same lines of code before.
    """

    id: str
    task: Task
    end: EpisodeEnd
    trajectories: tuple[Trajectory, ...]
    error: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    traceback: str | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        seats = [trajectory.seat for trajectory in self.trajectories]
        if len(set(seats)) != len(seats):
            raise DataError(f"episode {self.id} has seats {seats}; one trajectory per seat is needed")
        if (self.error is not None) != (self.end in (EpisodeEnd.FAILED, EpisodeEnd.FORFEITED)):
            raise DataError(
                f"episode {self.id} ended {self.end.value} with error {self.error!r}; those that failed or were "
                "forfeited have one"
            )

    def trajectory(self, seat: str) -> Trajectory:
        """The trajectory of a seat.

        Raises:
            DataError: The seat took no part.
        """
        for trajectory in self.trajectories:
            if trajectory.seat == seat:
                return trajectory
        raise DataError(
            f"episode {self.id} has no seat {seat!r}; its seats are {[entry.seat for entry in self.trajectories]}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The episodes of one task, over which advantages are computed.

    Attributes:
        task: The task.
        episodes: All of them, failed ones included.
    """

    task: Task
    episodes: tuple[Episode, ...]

    def __post_init__(self) -> None:
        if strangers := [episode.id for episode in self.episodes if episode.task != self.task]:
            raise DataError(f"episodes {strangers} are not of task {self.task}")

    @property
    def valid(self) -> tuple[Episode, ...]:
        """The episodes that estimators may see."""
        return tuple(episode for episode in self.episodes if not episode.end.is_error)

    @property
    def failed(self) -> tuple[Episode, ...]:
        """The episodes that are only counted and named."""
        return tuple(episode for episode in self.episodes if episode.end.is_error)

    def trajectories(self, seat: str) -> tuple[Trajectory, ...]:
        """The trainable trajectories of a seat in the valid episodes, but for those that it forfeited."""
        return tuple(entry for entry in self._trainable if entry.seat == seat)

    @property
    def trainable_seats(self) -> tuple[str, ...]:
        """The seats with trainable trajectories, in order of appearance."""
        return tuple(dict.fromkeys(entry.seat for entry in self._trainable))

    @property
    def _trainable(self) -> Iterator[Trajectory]:
        entries = (entry for episode in self.valid for entry in episode.trajectories)
        return (entry for entry in entries if entry.trainable and not entry.end.is_error)


def turns_from_prompts(pairs: Sequence[tuple[Sequence[int], Sequence[int], Sequence[float]]]) -> tuple[Turn, ...]:
    """Turns from whole prompts, as a stateless harness sees them.

    A prompt that begins with all tokens held so far becomes an appended observation; one that doesn't restarts.

    Args:
        pairs: Per turn the whole prompt, the sampled action and its log-probs.
    """
    held: tuple[int, ...] = ()
    turns: list[Turn] = []
    for prompt, action, logprobs in pairs:
        continues = tuple(prompt[: len(held)]) == held
        turns.append(
            Turn(
                observation=ModelInput.of(prompt[len(held) :] if continues else prompt),
                action=tuple(action),
                logprobs=tuple(logprobs),
                end=TurnEnd.STOP,
                restarts=not continues,
            )
        )
        held = (*prompt, *action)
    return tuple(turns)


def _require_finite(name: str, values: Sequence[float]) -> None:
    for position, value in enumerate(values):
        if not math.isfinite(value):
            raise DataError(f"{name}[{position}] is {value}; finite numbers are needed")
