"""One episode: the one rollout path for training, validation and inference, with one seat or many."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any

from tinker_actors.coordinator.barrier import Barrier, SeatFailedError, is_cancelled
from tinker_actors.coordinator.clock import EpisodeClock
from tinker_actors.coordinator.limits import EpisodeLimits
from tinker_actors.data import Episode, EpisodeEnd, ModelInput, Task, Trajectory, Turn, TurnEnd, derive_seed
from tinker_actors.environments import Action, Agent, Environment, LiveEnvironment
from tinker_actors.errors import ConfigError

logger = logging.getLogger(__name__)

_LONGEST_MESSAGE = 500  # characters of an exception's message: some carry whole documents


async def run_episode(
    environment: Environment | LiveEnvironment,
    agents: Mapping[str, Agent],
    *,
    task: Task,
    id: str,
    seed: int | None = None,
    limits: EpisodeLimits | None = None,
    clock: EpisodeClock | None = None,
) -> Episode:
    """Play one episode to its end, whatever that is.

    In every turn the acting seats act at the same time; the environment gets their actions once all are there.
    A reward belongs to the last turn of its seat. What fails is data: the episode then ends `FAILED`, with one line
    that names environment, seat, turn and cause, and with the turns before. However it ends, cancelled ones included,
    the environment is closed and every agent's `finish` is called exactly once.

    Args:
        environment: A fresh instance; closed here.
        agents: One per seat of the environment.
        task: Its seed goes to `reset`.
        id: The episode's id.
        seed: The episode's own, for the environment's luck; derived from `id` if not given.
        limits: None for the environment's own turn limit only.
        clock: Keeps the limits; an agent may hold it too, and stop it for waits that are not the episode's own.

    Raises:
        ConfigError: The agents don't fit the seats, or the environment's seats or turns can't be used.
    """
    if isinstance(environment, LiveEnvironment):
        live = environment
    else:
        live = LiveEnvironment(environment, luck=derive_seed(id) if seed is None else seed)
    if set(agents) != set(live.seats):
        raise ConfigError(f"agents are given for seats {sorted(agents)}; {live.name} has seats {list(live.seats)}")
    clock = clock or EpisodeClock()
    return await _Play(live, agents, task=task, id=id, limits=limits or EpisodeLimits(), clock=clock).run()


def failed_episode(*, task: Task, id: str, error: str) -> Episode:
    """An episode that failed before its first turn."""
    return Episode(id=id, task=task, end=EpisodeEnd.FAILED, trajectories=(), error=error)


def describe_error(error: BaseException) -> str:
    """One line: the type, the message and the line of code that raised.

    >>> try:
    ...     [][0]
    ... except IndexError as error:
    ...     describe_error(error).split(" (")[0]
    'IndexError: list index out of range'
    """
    message = " ".join(str(error).split())
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[:_LONGEST_MESSAGE]}..."
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' if message else ''}{message}{where}"


class _Play:
    """The state of one episode."""

    def __init__(
        self,
        live: LiveEnvironment,
        agents: Mapping[str, Agent],
        *,
        task: Task,
        id: str,
        limits: EpisodeLimits,
        clock: EpisodeClock,
    ) -> None:
        self._live = live
        self._agents = agents
        self._task = task
        self._id = id
        self._limits = limits
        self._clock = clock
        self._barrier = Barrier(agents)
        self._turns: dict[str, list[Turn]] = {seat: [] for seat in live.seats}
        self._rewards: dict[str, list[float]] = {seat: [] for seat in live.seats}
        self._early: dict[str, float] = {}  # rewards of seats that have not acted yet
        self._acted: tuple[str, ...] = ()  # the seats whose actions the environment is handling
        self._metrics: dict[str, float] = {}
        self._number = 0
        self._stage = "reset"

    async def run(self) -> Episode:
        end, error = EpisodeEnd.FAILED, "cancelled"
        try:
            end, error = await self._guarded()
        finally:
            episode = self._episode(end, error)
            await self._close(episode)
        return episode

    async def _guarded(self) -> tuple[EpisodeEnd, str | None]:
        """Play within the deadlines; a failure becomes an end and the line that describes it."""
        self._clock.limit(self._limits)
        # The boundary to user code: whatever the environment or an agent raises ends this episode and no other.
        try:
            async with self._clock:
                return await self._play(), None
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            return EpisodeEnd.FAILED, self._failed(error)

    async def _play(self) -> EpisodeEnd:
        self._clock.next_turn()
        observations = await self._live.reset(self._task.seed)
        limit = min(self._live.max_turns, self._limits.max_turns or self._live.max_turns)
        for self._number in range(limit):
            self._clock.next_turn()
            self._stage = "act"
            actions = await self._barrier.act(observations)
            overflowed = False
            for seat, action in actions.items():
                self._record(seat, action)
                overflowed |= action.end is TurnEnd.CONTEXT_OVERFLOW
            if overflowed:
                return EpisodeEnd.TRUNCATED
            self._stage, self._acted = "step", tuple(actions)
            outcome = await self._live.step({seat: action.text for seat, action in actions.items()})
            self._acted = ()
            for seat, reward in outcome.rewards.items():
                self._reward(seat, reward)
            if outcome.metrics:
                self._metrics.update(outcome.metrics)
            if outcome.terminated or outcome.truncated:
                return EpisodeEnd.TERMINATED if outcome.terminated else EpisodeEnd.TRUNCATED
            observations = outcome.observations
        return EpisodeEnd.TRUNCATED

    def _record(self, seat: str, action: Action) -> None:
        rewards = self._rewards[seat]
        rewards += [turn.reward for turn in action.turns]
        self._turns[seat] += action.turns
        if self._early:
            rewards[-1] += self._early.pop(seat, 0.0)

    def _reward(self, seat: str, reward: float) -> None:
        if self._rewards[seat]:
            self._rewards[seat][-1] += reward
        else:
            self._early[seat] = self._early.get(seat, 0.0) + reward

    def _failed(self, error: BaseException) -> str:
        """Mark the turns that the failure touched; say what failed, where."""
        timed_out = self._clock.expired
        if self._stage == "act":
            seats = tuple(self._barrier.waiting_for)
            if timed_out:
                for seat, messages in self._barrier.waiting_for.items():
                    self._append(seat, _unanswered(messages))
            elif isinstance(error, SeatFailedError):
                seats, error = (error.seat,), error.cause
            where = f"seat{'s' if len(seats) > 1 else ''} {', '.join(map(repr, seats))}, turn {self._number}"
        elif self._stage == "step":
            end = TurnEnd.TIMEOUT if timed_out else TurnEnd.ENV_ERROR
            for seat in self._acted:
                self._turns[seat][-1] = replace(self._turns[seat][-1], end=end)
            where = f"step after seat{'s' if len(self._acted) > 1 else ''} {', '.join(map(repr, self._acted))}, "
            where += f"turn {self._number}"
        else:
            where = "reset"
        cause = self._deadline() if timed_out else describe_error(error)
        line = f"{self._task.environment}: {where}: {cause}"
        logger.info("episode %s failed: %s", self._id, line, exc_info=None if timed_out else error)
        return line

    def _append(self, seat: str, turn: Turn) -> None:
        self._turns[seat].append(turn)
        self._rewards[seat].append(turn.reward)

    def _deadline(self) -> str:
        bounds = {"turn_seconds": self._limits.turn_seconds, "episode_seconds": self._limits.episode_seconds}
        return f"not done in time ({', '.join(f'{name} {value:g}' for name, value in bounds.items() if value)})"

    def _episode(self, end: EpisodeEnd, error: str | None) -> Episode:
        # A reward for a seat that never acted has no turn to belong to; it is reported rather than lost.
        unearned = {f"reward_without_turn/{seat}": reward for seat, reward in self._early.items() if reward}
        return Episode(
            id=self._id,
            task=self._task,
            end=end,
            trajectories=tuple(self._trajectory(seat, end) for seat in self._live.seats),
            error=error,
            metrics={**self._metrics, **unearned},
        )

    def _trajectory(self, seat: str, end: EpisodeEnd) -> Trajectory:
        pairs = zip(self._turns[seat], self._rewards[seat], strict=True)
        return Trajectory(
            seat=seat,
            policy=self._agents[seat].policy,
            turns=tuple(turn if turn.reward == reward else replace(turn, reward=reward) for turn, reward in pairs),
            end=end,
            trainable=self._agents[seat].trainable,
        )

    async def _close(self, episode: Episode) -> None:
        await self._ended("close", self._live.close())
        for seat, agent in self._agents.items():
            await self._ended(f"seat {seat!r}: finish", agent.finish(episode.trajectory(seat), episode.error))

    async def _ended(self, what: str, call: Awaitable[Any]) -> None:
        # The boundary to user code again: the episode is over, so what is raised here changes nothing but the log.
        try:
            async with asyncio.timeout(self._limits.close_seconds):
                await call
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            cause = f"not done in {self._limits.close_seconds:g} s" if isinstance(error, TimeoutError) else None
            logger.warning(
                "%s: %s of episode %s: %s", self._task.environment, what, self._id, cause or describe_error(error)
            )


def _unanswered(messages: tuple[Any, ...]) -> Turn:
    return Turn(observation=ModelInput(), action=(), logprobs=None, end=TurnEnd.TIMEOUT, messages=messages)
