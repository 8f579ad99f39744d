"""The protocol of one episode: reset, act, step and act again, forfeit, close. `docs/coordinator.md` has its states.

This is the one rollout path for training, validation and inference, with one seat or many; `run_episode` plays it in
the caller's task, `EpisodeCoordinator` as an actor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, cast

from tinker_actors.actors.cancelled import is_cancelled
from tinker_actors.actors.failures import text_of
from tinker_actors.coordinator.barrier import Barrier, SeatFailedError, as_answer
from tinker_actors.coordinator.clock import EpisodeClock
from tinker_actors.coordinator.described import describe_error
from tinker_actors.coordinator.limits import EpisodeLimits
from tinker_actors.coordinator.scores import Scores
from tinker_actors.data import Episode, EpisodeEnd, Task, TurnEnd
from tinker_actors.environments import Agent, LiveEnvironment, Outcome, Playable

logger = logging.getLogger(__name__)


class Stage(Enum):
    """Where an episode is in its protocol."""

    RESET = "reset"
    """The environment begins the task."""
    ACT = "act"
    """The barrier is open: seats are to answer."""
    STEP = "step"
    """The environment answers their actions."""
    FORFEIT = "forfeit"
    """A seat has failed, and the environment says what that is worth."""
    CLOSE = "close"
    """It is over; the environment is closed and the agents hear of it."""
    ENDED = "ended"
    """All of that is done."""


_ACT, _STEP, _OVERFLOW = Stage.ACT, Stage.STEP, TurnEnd.CONTEXT_OVERFLOW  # looked up in every turn, which takes a while


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeState:
    """Where an episode stands.

    Attributes:
        id: The episode's.
        stage: Where it is in its protocol.
        turn: The number of the turn, from 0.
        waiting_for: The seats that have not answered, while the barrier is open.
    """

    id: str
    stage: Stage
    turn: int
    waiting_for: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """What failed: the line that says so, and the seats to blame, if it was seats."""

    line: str
    seats: tuple[str, ...] = ()


class EpisodeProtocol:
    """One episode, from its reset to its end.

    Args:
        live: The environment; closed here.
        agents: One per seat.
        task: The task.
        id: The episode's id.
        limits: Its limits.
        clock: Keeps them.
    """

    def __init__(
        self,
        live: Playable,
        agents: Mapping[str, Agent],
        *,
        task: Task,
        id: str,
        limits: EpisodeLimits,
        clock: EpisodeClock,
    ) -> None:
        self._live = live
        self._agents = agents
        self._about = task
        self._id = id
        self._limits = limits
        self._clock = clock
        self._barrier = Barrier(agents, clock, limits.seat_seconds)
        self._scores = Scores(live.seats)
        self._acted: Collection[str] = ()  # the seats whose actions the environment is handling
        self._metrics: dict[str, float] = {}
        self._turn = 0
        self._stage = Stage.RESET
        self._forfeited: tuple[str, ...] = ()
        self._task: asyncio.Task[object] | None = None
        self._stopped: str | None = None
        self._traceback: str | None = None

    @property
    def state(self) -> EpisodeState:
        """Where it stands."""
        waiting = tuple(self._barrier.waiting_for) if self._stage is Stage.ACT else ()
        return EpisodeState(id=self._id, stage=self._stage, turn=self._turn, waiting_for=waiting)

    def stop(self, cause: str) -> bool:
        """End the episode as failed, with this cause; False if it hasn't begun, or is over already."""
        if self._task is None or self._stage in (Stage.CLOSE, Stage.ENDED) or self._stopped is not None:
            return False
        self._stopped = cause
        return self._task.cancel()

    async def run(self) -> Episode:
        """Play it. However it ends, cancelled included, the environment is closed and the agents hear of it."""
        end, error = EpisodeEnd.FAILED, "cancelled"
        task = self._task = cast("asyncio.Task[object]", asyncio.current_task())
        self._clock.limit(self._limits)
        try:
            # The boundary to user code: whatever the environment or an agent raises ends this episode and no other.
            try:
                async with self._clock:
                    end, error = await self._play(), None
            except (Exception, SystemExit, asyncio.CancelledError) as failure:
                if isinstance(failure, asyncio.CancelledError) and is_cancelled():
                    raise
                end, error = await self._settle(self._blame(failure))
        except asyncio.CancelledError:
            if self._stopped is None:
                raise
            task.uncancel()
            error = f"{self._about.environment}: stopped: {self._stopped}"
        finally:
            self._stage = Stage.CLOSE
            episode = self._episode(end, error)
            try:
                await self._close(episode)
            finally:
                self._stage = Stage.ENDED
        return episode if episode.traceback == self._traceback else replace(episode, traceback=self._traceback)

    async def _play(self) -> EpisodeEnd:
        live, clock, scores, barrier = self._live, self._clock, self._scores, self._barrier
        step = live.step_now if isinstance(live, LiveEnvironment) else live.step
        clock.next_turn()
        observations = await live.reset(self._about.seed)
        clock.check()
        for seat, tools in live.tools.items():
            self._stage, barrier.waiting_for = _ACT, {seat: observations.get(seat, ())}
            await self._agents[seat].equip(tools)
        bounded, at_leisure = clock.bounded, not self._limits.seat_seconds
        for turn in range(min(live.max_turns, self._limits.max_turns or live.max_turns)):
            if bounded:
                clock.next_turn()
            self._stage, self._turn = _ACT, turn
            if at_leisure and len(observations) == 1:
                # The hot path. Nobody else is to arrive, so that a coroutine of the barrier's would buy nothing;
                # whose failure it is `_blame` knows all the same.
                ((seat, messages),) = observations.items()
                barrier.waiting_for = observations
                text, turns = as_answer(messages, await self._agents[seat].act(messages))
                if bounded:
                    clock.check()
                scores.record(seat, turns)
                texts, overflowed = {seat: text}, turns[-1].end is _OVERFLOW
            else:
                answers = await barrier.act(observations)
                for seat, (_, turns) in answers.items():
                    scores.record(seat, turns)
                texts = {seat: text for seat, (text, _) in answers.items()}
                overflowed = any(turns[-1].end is _OVERFLOW for _, turns in answers.values())
            if overflowed:
                return EpisodeEnd.TRUNCATED
            self._stage, self._acted = _STEP, observations
            outcome = step(texts)
            if not isinstance(outcome, Outcome):
                outcome = await outcome
            if bounded:
                clock.check()
            if outcome.rewards:
                for seat, reward in outcome.rewards.items():
                    scores.reward(seat, reward)
            if outcome.metrics:
                self._metrics.update(outcome.metrics)
            if outcome.terminated or outcome.truncated:
                return EpisodeEnd.TERMINATED if outcome.terminated else EpisodeEnd.TRUNCATED
            observations = outcome.observations
        return EpisodeEnd.TRUNCATED

    def _blame(self, error: BaseException) -> _Failure:
        """Mark the turns that the failure touched; say what failed, where, and whose fault it was."""
        late, blamed = self._clock.expired, ()
        if self._stage is Stage.ACT:
            where, blamed, error, late = self._blame_seats(error, late)
        elif self._stage is Stage.STEP:
            for seat in self._acted:
                self._scores.amend(seat, TurnEnd.TIMEOUT if late else TurnEnd.ENV_ERROR)
            where = f"step after {_named(self._acted)}, turn {self._turn}"
        else:
            where = "reset"
        cause = self._deadline(blamed) if late else describe_error(error)
        line = f"{self._about.environment}: {where}: {cause}"
        logger.info("episode %s failed: %s", self._id, line)
        self._traceback = None if late else text_of(error)
        return _Failure(line=line, seats=blamed)

    def _blame_seats(self, error: BaseException, late: bool) -> tuple[str, tuple[str, ...], BaseException, bool]:
        waiting = self._barrier.waiting_for
        if not late and not isinstance(error, SeatFailedError) and len(waiting) == 1:
            error = SeatFailedError(next(iter(waiting)), error)
        ends = dict.fromkeys(waiting, TurnEnd.TIMEOUT) if late else {}
        if not late and isinstance(error, SeatFailedError):
            ends = {error.seat: error.end}
            late, error = error.end is TurnEnd.TIMEOUT, error.cause
        for seat, end in ends.items():
            self._scores.unanswered(seat, waiting[seat], end)
        # past the whole episode's limit nobody in particular is to blame
        blamed = () if self._clock.is_over else tuple(ends)
        return f"{_named(ends)}, turn {self._turn}", blamed, error, late

    def _deadline(self, blamed: tuple[str, ...]) -> str:
        own = {seat: self._limits.seat_seconds[seat] for seat in blamed if seat in self._limits.seat_seconds}
        bounds = {"turn_seconds": self._limits.turn_seconds, "episode_seconds": self._limits.episode_seconds}
        if own and not self._clock.expired:
            bounds = {f"seat_seconds of {seat!r}": seconds for seat, seconds in own.items()}
        return f"not done in time ({', '.join(f'{name} {value:g}' for name, value in bounds.items() if value)})"

    async def _settle(self, failure: _Failure) -> tuple[EpisodeEnd, str]:
        """Ask the environment what the failure of seats is worth."""
        if not failure.seats or len(failure.seats) == len(self._live.seats):
            return EpisodeEnd.FAILED, failure.line
        self._stage = Stage.FORFEIT
        # The boundary to the environment: what `forfeit` raises drops the episode.
        try:
            async with asyncio.timeout(self._limits.close_seconds):
                rewards = await self._live.forfeit(failure.seats, self._limits.forfeit)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            return EpisodeEnd.FAILED, f"{failure.line}; forfeit: {self._gave_up(error)}"
        if rewards is None:
            return EpisodeEnd.FAILED, failure.line
        self._forfeited = failure.seats
        for seat, reward in rewards.items():
            self._scores.reward(seat, reward)
        return EpisodeEnd.FORFEITED, failure.line

    def _episode(self, end: EpisodeEnd, error: str | None) -> Episode:
        return Episode(
            id=self._id,
            task=self._about,
            end=end,
            trajectories=self._scores.trajectories(self._agents, end, self._forfeited),
            error=error,
            metrics=self._metrics,
            traceback=self._traceback,
        )

    async def _close(self, episode: Episode) -> None:
        await self._ended("close", self._live.close())
        for seat, agent in self._agents.items():
            if type(agent).finish is not Agent.finish:
                await self._ended(f"seat {seat!r}: finish", agent.finish(episode.trajectory(seat), episode.error))

    async def _ended(self, what: str, call: Awaitable[Any]) -> None:
        # The boundary to user code again: the episode is over, so what is raised here changes nothing but the log.
        try:
            async with asyncio.timeout(self._limits.close_seconds):
                await call
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            logger.warning("%s: %s of episode %s: %s", self._about.environment, what, self._id, self._gave_up(error))

    def _gave_up(self, error: BaseException) -> str:
        """Why what ends an episode isn't done, in words; the traceback is kept, unless there is one of a failure."""
        if isinstance(error, TimeoutError):
            return f"not done in {self._limits.close_seconds:g} s"
        self._traceback = self._traceback or text_of(error)
        return describe_error(error)


def _named(seats: Collection[str]) -> str:
    return f"seat{'s' if len(seats) > 1 else ''} {', '.join(map(repr, seats))}"
