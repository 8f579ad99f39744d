"""Collecting the groups of a phase from workers, of which any may die, hang or come back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from tinker_actors.actors import (
    ActorDiedError,
    ActorStoppedError,
    DeadlineExceeded,
    NodeDiedError,
    UnroutableError,
)
from tinker_actors.coordinator import failed_episode
from tinker_actors.coordinator.limits import check_seconds
from tinker_actors.data import Episode, Group
from tinker_actors.errors import ConfigError, RunError
from tinker_actors.rollouts.events import CollectEvent, EpisodeRaised, EpisodesDone, WorkerBlocked, WorkerLost
from tinker_actors.rollouts.ledger import Ledger
from tinker_actors.rollouts.lockstep import cohorts_of
from tinker_actors.rollouts.plans import Assignment, Rollout, RolloutPlan

logger = logging.getLogger(__name__)

_PROBE = 2.0  # seconds that a worker has to answer that it is back
_LOST = (ActorDiedError, ActorStoppedError, NodeDiedError, UnroutableError, DeadlineExceeded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """What is tried again, and how long anything is waited for.

    Attributes:
        attempts: How often a rollout is dispatched whose worker dies or falls silent. The last failure makes it a
            failed episode. Retries go out in smaller batches, so that an episode that kills its worker takes few
            others with it.
        failed: Further tries of an episode that failed by itself. It has the same seeds, so that this helps only
            where something outside is unreliable.
        silence_seconds: How long a worker may deliver nothing before its rollouts go to others as well; None for the
            limits on an episode and on a turn (which bounds how long an instance elsewhere takes to be made) and ten
            seconds, or no bound where there is no limit on episodes.
        respawn_seconds: How long a worker that was lost has to come back.
        blocked_seconds: How often a worker that plays is asked whether its event loop turns; it has half as long to
            answer before it is told of. Nothing is taken from it for that.
    """

    attempts: int = 3
    failed: int = 0
    silence_seconds: float | None = None
    respawn_seconds: float = 30.0
    blocked_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.failed < 0:
            raise ConfigError(
                f"attempts is {self.attempts} and failed is {self.failed}; at least 1 and at least 0 are needed"
            )
        for name in ("silence_seconds", "respawn_seconds", "blocked_seconds"):
            if (value := getattr(self, name)) is not None:
                check_seconds(name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The result of a phase.

    Attributes:
        groups: All groups, in the plan's order, failed episodes included; those that pass, where there is a filter.
        dropped_failures: Failed episodes of the groups that a filter dropped.
        late: Results that were dropped because another attempt's came first.
        retried: How many times a rollout was dispatched again.
        lost: How many times a worker was lost.
        seconds: From the first dispatch to the last result.
    """

    groups: tuple[Group, ...]
    dropped_failures: tuple[Episode, ...] = ()
    late: int = 0
    retried: int = 0
    lost: int = 0
    seconds: float = 0.0

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """All episodes, group by group."""
        return tuple(episode for group in self.groups for episode in group.episodes)

    @property
    def complete(self) -> tuple[Group, ...]:
        """The groups in which no episode failed."""
        return tuple(group for group in self.groups if not group.failed)

    @property
    def failures(self) -> tuple[Episode, ...]:
        """The failed episodes, those of dropped groups last; each names its error."""
        return (*(episode for group in self.groups for episode in group.failed), *self.dropped_failures)


async def collect(
    workers: Sequence[Any],
    plan: RolloutPlan,
    *,
    retries: Retries | None = None,
    on_event: Callable[[CollectEvent], None] | None = None,
) -> Collected:
    """Play a plan on workers. The episodes do not depend on how many there are or on which of them fail.

    Args:
        workers: Refs of `RolloutWorker`s.
        plan: What to play.
        retries: What is tried again.
        on_event: Told of progress, on the event loop.

    Raises:
        ConfigError: There is no worker, or the plan's seats don't fit the environment.
        RunError: All workers are gone.
    """
    if not workers:
        raise ConfigError("no rollout worker was given; at least one is needed")
    return await _Collection(workers, plan, retries or Retries(), on_event or (lambda _: None)).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    rollouts: tuple[Rollout, ...]
    attempt: int


class _SilentError(Exception):
    """A worker delivered nothing for too long, or stopped before it had delivered all."""


class _Collection:
    """The state of one `collect`."""

    def __init__(
        self, workers: Sequence[Any], plan: RolloutPlan, retries: Retries, on_event: Callable[[CollectEvent], None]
    ) -> None:
        self._workers = workers
        self._plan = plan
        self._retries = retries
        self._on_event = on_event
        self._ledger = Ledger(plan)
        self._queue: asyncio.Queue[_Batch] = asyncio.Queue()
        self._finished = asyncio.Event()
        self._overdue: set[asyncio.Task[None]] = set()  # streams of silent workers, still listened to
        self._failed_tries: dict[str, int] = {}
        self._by_id = {rollout.id: rollout for rollout in plan.rollouts}
        self._retried = self._lost = 0
        self._last_cause = ""
        self._cohorts = tuple(cohorts_of(plan))
        self._silence = retries.silence_seconds
        if self._silence is None and plan.limits.episode_seconds is not None:
            limits = plan.limits
            self._silence = plan.limits.episode_seconds + (limits.turn_seconds or 0.0) + limits.close_seconds + 10.0

    async def run(self) -> Collected:
        started = asyncio.get_running_loop().time()
        share = ceil(self._ledger.total / len(self._workers))
        self._dispatch(self._plan.rollouts, attempt=1, size=share)
        finished = asyncio.create_task(self._finished.wait())
        serving = {asyncio.create_task(self._serve(worker)) for worker in self._workers}
        try:
            while not finished.done():
                done, _ = await asyncio.wait({finished, *serving}, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {finished}:
                    task.result()  # raises what is not the loss of a worker
                serving -= done
                if not serving and not self._finished.is_set():
                    missing = self._ledger.total - self._ledger.done
                    raise RunError(
                        f"all {len(self._workers)} rollout workers are gone, the last one because: "
                        f"{self._last_cause}; {missing} of {self._ledger.total} episodes are missing"
                    )
        finally:
            tasks = [finished, *serving, *self._overdue]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return Collected(
            groups=self._ledger.groups(),
            late=self._ledger.late,
            retried=self._retried,
            lost=self._lost,
            seconds=asyncio.get_running_loop().time() - started,
        )

    def _dispatch(self, rollouts: Sequence[Rollout], *, attempt: int, size: int) -> None:
        for start in range(0, len(rollouts), size):
            self._queue.put_nowait(_Batch(rollouts=tuple(rollouts[start : start + size]), attempt=attempt))

    async def _serve(self, worker: Any) -> None:
        """Give a worker one batch after another, until it is gone for good."""
        while True:
            batch = await self._queue.get()
            missing = self._ledger.missing(batch.rollouts)
            if not missing:
                continue
            asked = asyncio.create_task(self._ask_whether_it_turns(worker))
            try:
                await self._play(worker, _Batch(rollouts=missing, attempt=batch.attempt))
            except (*_LOST, _SilentError) as error:
                self._give_back(worker, batch, error)
                if not await self._is_back(worker):
                    return
            finally:
                asked.cancel()

    async def _ask_whether_it_turns(self, worker: Any) -> None:
        """Tell once of a worker that doesn't answer; what it owes is waited for all the same."""
        patience = self._retries.blocked_seconds / 2
        while True:
            await asyncio.sleep(self._retries.blocked_seconds)
            try:
                async with asyncio.timeout(patience):
                    await worker.ready()
            except _LOST:
                return  # whoever waits for its episodes is told
            except TimeoutError:
                logger.warning("rollout worker %s has not answered for %g s", _name(worker), patience)
                self._on_event(WorkerBlocked(worker=_name(worker), seconds=patience))
                return

    async def _play(self, worker: Any, batch: _Batch) -> None:
        plan = self._plan
        assignment = Assignment(
            rollouts=batch.rollouts,
            line_ups=plan.line_ups,
            limits=plan.limits,
            evaluating=plan.evaluating,
            gate=plan.gate,
        )
        stream = aiter(worker.stream.run(assignment))
        owed = len(batch.rollouts)
        while owed:
            coming = asyncio.ensure_future(anext(stream, None))
            try:
                await self._wait(coming)
            except (asyncio.CancelledError, *_LOST):  # this task ends, or the gate is gone
                await _drop(stream, coming)
                raise
            if not coming.done():
                self._overdue.add(asyncio.create_task(self._listen(stream, coming)))
                raise _SilentError(
                    f"nothing came from it for {self._silence:g} s; methods of environments that wait or compute for "
                    "long are kept from holding up a worker by `blocking = True` or environment.isolation 'thread'"
                )
            episodes = coming.result()
            if episodes is None:
                raise _SilentError(f"it stopped with {owed} episodes to go")
            owed -= len(episodes)
            self._take(episodes)
        await stream.aclose()

    async def _wait(self, coming: asyncio.Future[Any]) -> None:
        """Wait until something comes, or the worker has been silent for too long.

        In lockstep a worker may have nothing to deliver while episodes of other workers, or the sampler, take long; it
        is silent only from when nothing happens at the gate any more.
        """
        left = self._silence
        while True:
            await asyncio.wait({coming}, timeout=left)
            if coming.done() or self._silence is None or self._plan.gate is None:
                return
            left = self._silence - await self._plan.gate.idle(self._cohorts)
            if left <= 0:
                return

    async def _listen(self, stream: Any, coming: asyncio.Future[Any]) -> None:
        """Go on listening to a silent worker: what it still delivers counts if it is the first, else as late."""
        try:
            while (episodes := await coming) is not None:
                self._take(episodes)
                coming = asyncio.ensure_future(anext(stream, None))
        except _LOST:
            return  # its rollouts were given to others when it fell silent
        finally:
            await _drop(stream, coming)

    def _take(self, episodes: Sequence[Episode]) -> None:
        fresh: list[Episode] = []
        for episode in episodes:
            if episode.traceback is not None:
                self._on_event(EpisodeRaised(episode=episode.id, error=episode.error, traceback=episode.traceback))
            tries = self._failed_tries.get(episode.id, 0)
            if episode.end.is_error and tries < self._retries.failed and episode.id in self._by_id:
                self._failed_tries[episode.id] = tries + 1
                self._retried += 1
                self._dispatch([self._by_id[episode.id]], attempt=1, size=1)
            elif self._ledger.accept(episode):
                fresh.append(episode)
        self._report(fresh)

    def _give_back(self, worker: Any, batch: _Batch, error: BaseException) -> None:
        """Dispatch what a lost worker owes again, or declare it failed after the last attempt."""
        cause = " ".join(f"{type(error).__name__.removeprefix('_')}: {error}".split("\n", 1)[0].split())
        name = _name(worker)
        missing = self._ledger.missing(batch.rollouts)
        self._lost += 1
        self._last_cause = f"{name}: {cause}"
        again = batch.attempt < self._retries.attempts
        logger.warning("rollout worker %s was lost with %d episodes unfinished: %s", name, len(missing), cause)
        self._on_event(WorkerLost(worker=name, cause=cause, unfinished=len(missing) if again else 0))
        if again:
            self._retried += len(missing)
            self._dispatch(missing, attempt=batch.attempt + 1, size=max(1, len(missing) // 4))
            return
        line = f"worker lost in {batch.attempt} of {batch.attempt} attempts; last {name}: {cause}"
        failed = [
            failed_episode(task=entry.task, id=entry.id, error=f"{entry.task.environment}: {line}") for entry in missing
        ]
        self._report([episode for episode in failed if self._ledger.accept(episode)])

    def _report(self, fresh: Sequence[Episode]) -> None:
        if fresh:
            self._on_event(EpisodesDone(episodes=tuple(fresh), done=self._ledger.done, total=self._ledger.total))
        if self._ledger.complete:
            self._finished.set()

    async def _is_back(self, worker: Any) -> bool:
        """Wait for a lost worker; whether it answers again in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retries.respawn_seconds
        pause = 0.05
        while loop.time() < deadline:
            try:
                async with asyncio.timeout(min(_PROBE, deadline - loop.time())):
                    await worker.ready()
                return True
            except ActorStoppedError:
                return False
            except (*_LOST, TimeoutError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)
        return False


async def _drop(stream: Any, coming: asyncio.Future[Any]) -> None:
    """Stop reading a stream, which cancels what its worker does for it."""
    coming.cancel()
    await asyncio.wait({coming})
    if not coming.cancelled():
        coming.exception()  # looked at, so that it isn't reported as forgotten
    await stream.aclose()


def _name(worker: Any) -> str:
    address = getattr(worker, "address", None)
    return getattr(address, "name", None) or type(worker).__name__
