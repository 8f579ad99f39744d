"""Lockstep: what a sampler computes together is fixed by the plan, not by who happened to ask at what time.

The last bits of a row's logits depend on what shares its batch. Where a run is to be repeated bit for bit, the
episodes of a cohort therefore wait for each other before every action: once each of them has asked or ended, their
requests go to the sampler as batches of their own, in the plan's order.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from tinker_actors.actors import Actor, concurrent
from tinker_actors.coordinator import EpisodeClock
from tinker_actors.errors import ConfigError, PolicyError, SamplingError
from tinker_actors.policies.handles import Handle
from tinker_actors.rollouts.plans import RolloutPlan
from tinker_actors.sampling.requests import SamplingReply, SamplingRequest

Result: TypeAlias = SamplingReply | SamplingError | PolicyError
"""What became of one request."""


class Gate(Actor):
    """Stands between the episodes of cohorts and their sampler; in the sampler's process.

    An episode that is played again after its worker died gets the answers that it got before, without being sampled
    again, until it is where the others are.

    Nothing here depends on time: an episode that does not come keeps the others waiting until its own limits end it, or
    its worker is lost. Their own limits don't count the wait; see `EpisodeSampler`.
    """

    def __init__(self) -> None:
        self._cohorts: dict[str, _Cohort] = {}
        self._newest: dict[str, str] = {}

    async def on_start(self) -> None:
        """Remember a context in which no call is being served: a batch belongs to none of those that wait for it."""
        self._context = contextvars.copy_context()

    async def on_stop(self) -> None:
        """End what is under way."""
        await self.close(tuple(self._cohorts))

    async def serve(self, snapshot: str) -> None:
        """Say which snapshot is its policy's newest from now on, for cohorts that follow; the sampler serves it."""
        self._newest[Handle.parse(snapshot).policy_id] = snapshot

    async def open(self, sampler: Any, cohorts: Mapping[str, Sequence[str]], *, follow: Sequence[str] = ()) -> None:
        """Expect episodes.

        Args:
            sampler: Ref of the sampler of all of them.
            cohorts: The ids of the episodes of each cohort, in the order in which they are to stand in batches.
            follow: Snapshots in whose place the newest one of their policy samples, from one action to the next; a
                request for any other stays on the snapshot that it names.
        """
        for name, members in cohorts.items():
            if name in self._cohorts:
                raise ConfigError(f"cohort {name!r} is open already; a cohort is played once at a time")
            self._cohorts[name] = _Cohort(members, partial(self._sample_now, sampler, tuple(follow)))

    async def close(self, cohorts: Sequence[str]) -> None:
        """Forget cohorts."""
        for name in cohorts:
            if (found := self._cohorts.pop(name, None)) is not None:
                found.close()

    async def idle(self, cohorts: Sequence[str]) -> float:
        """For how many seconds nothing has happened here in any of these cohorts; 0 while one is being sampled."""
        return min((self._cohorts[name].idle for name in cohorts if name in self._cohorts), default=math.inf)

    @concurrent
    async def sample(
        self, cohort: str, member: str, number: int, requests: tuple[SamplingRequest, ...]
    ) -> tuple[Result, ...]:
        """Sample for the seats of one episode that act now, once the cohort is where it is.

        Args:
            cohort: The episode's cohort.
            member: The episode's id.
            number: How many times this attempt at the episode asked before.
            requests: One for each seat that acts.

        Returns:
            For each request what the sampler answered or raised.

        Raises:
            SamplingError: The cohort isn't open, or has no such episode.
        """
        found = self._cohorts.get(cohort)
        if found is None:
            raise SamplingError(f"cohort {cohort!r} of episode {member!r} is not open; those that are: {self._names()}")
        return await asyncio.shield(found.ask(member, number, requests))

    async def leave(self, cohort: str, member: str) -> None:
        """An episode has ended: nobody waits for it any more. To say so again, or too late, changes nothing."""
        if (found := self._cohorts.get(cohort)) is not None:
            found.leave(member)

    def _sample_now(
        self, sampler: Any, follow: Sequence[str], bursts: Mapping[str, _Burst], answer: Callable[[str], None]
    ) -> asyncio.Task[None]:
        newest = {handle: self._newest.get(Handle.parse(handle).policy_id) for handle in follow}
        snapshots = {handle: found for handle, found in newest.items() if found is not None}
        work = _sample(sampler, bursts, answer, snapshots)
        return asyncio.get_running_loop().create_task(work, context=self._context)

    def _names(self) -> str:
        return ", ".join(self._cohorts) or "none"


@dataclass(slots=True, kw_only=True, eq=False)
class _Burst:
    """What one episode asks at one time, and what it gets."""

    requests: tuple[SamplingRequest, ...]
    answer: asyncio.Future[tuple[Result, ...]]

    def give(self, results: Sequence[Result]) -> None:
        """Answer, unless nobody waits any more."""
        if not self.answer.done():
            self.answer.set_result(tuple(results))


_Start: TypeAlias = Callable[[Mapping[str, _Burst], Callable[[str], None]], asyncio.Task[None]]


class _Cohort:
    """Episodes that are sampled in lockstep. Each is playing, waiting, being sampled or gone."""

    def __init__(self, members: Sequence[str], start: _Start) -> None:
        self._order = {member: place for place, member in enumerate(members)}
        self._start_sampling = start
        self._playing = set(members)
        self._waiting: dict[str, _Burst] = {}
        self._sampled: set[str] = set()
        self._gone: set[str] = set()
        self._asked: dict[tuple[str, int], _Burst] = {}
        self._loop = asyncio.get_running_loop()
        self._moved = self._loop.time()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> float:
        """Seconds since something happened."""
        return 0.0 if self._sampled else self._loop.time() - self._moved

    def ask(
        self, member: str, number: int, requests: tuple[SamplingRequest, ...]
    ) -> asyncio.Future[tuple[Result, ...]]:
        """The answer to come; that of an earlier attempt which asked the same."""
        if member not in self._order:
            raise SamplingError(f"episode {member!r} is not of this cohort, which has {len(self._order)} others")
        before = self._asked.get((member, number))
        if before is not None and before.requests == requests and not before.answer.cancelled():
            return before.answer
        burst = self._asked[member, number] = _Burst(requests=requests, answer=self._loop.create_future())
        self._gone.discard(member)  # it is played again
        self._waiting[member] = burst
        self._playing.discard(member)
        self._consider()
        return burst.answer

    def leave(self, member: str) -> None:
        """An episode has ended."""
        self._gone.add(member)
        self._playing.discard(member)
        if (burst := self._waiting.pop(member, None)) is not None:
            burst.answer.cancel()
        self._consider()

    def close(self) -> None:
        """Nobody asks any more; whoever still waits is cancelled."""
        for task in self._tasks:
            task.cancel()
        for burst in self._asked.values():
            burst.answer.cancel()

    def _consider(self) -> None:
        """Sample if all have asked, and nothing is being sampled for the others."""
        self._moved = self._loop.time()
        if self._waiting and not self._sampled and not self._playing:
            ready = sorted(self._waiting, key=self._order.__getitem__)
            bursts = {member: self._waiting[member] for member in ready}
            self._waiting.clear()
            self._sampled |= bursts.keys()
            self._start(bursts)

    def _start(self, bursts: Mapping[str, _Burst]) -> None:
        task = self._start_sampling(bursts, self._answered)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _answered(self, member: str) -> None:
        self._sampled.discard(member)
        if member not in self._gone and member not in self._waiting:  # another attempt at it may have asked meanwhile
            self._playing.add(member)
        self._consider()


async def _sample(
    sampler: Any,
    bursts: Mapping[str, _Burst],
    answered: Callable[[str], None],
    snapshots: Mapping[str, str],
) -> None:
    """Sample for all of these episodes together and answer each as soon as all of its own is there."""
    owners = [(member, seat) for member, burst in bursts.items() for seat in range(len(burst.requests))]
    asked = [bursts[member].requests[seat] for member, seat in owners]
    requests = [replace(each, snapshot=snapshots.get(each.snapshot, each.snapshot)) for each in asked]
    results: dict[str, dict[int, Result]] = {member: {} for member in bursts}

    def give(member: str, found: Sequence[Result]) -> None:
        bursts[member].give(found)
        answered(member)

    # the boundary to the sampler: whatever it raises is each asker's failure
    try:
        async for done in sampler.stream.sample_together(requests):
            for position, result in done:
                member, seat = owners[position]
                results[member][seat] = result
                if len(results[member]) == len(bursts[member].requests):
                    give(member, [results[member][place] for place in range(len(results[member]))])
    except Exception as error:  # told to everyone who waits, whatever it is
        known = error if isinstance(error, SamplingError | PolicyError) else None
        failure = known or SamplingError(f"{type(error).__name__}: {error}")
        for member, burst in bursts.items():
            if len(results[member]) < len(burst.requests):
                give(member, [failure] * len(burst.requests))


class EpisodeSampler:
    """What the agents of one episode ask: gathers what the seats ask at one time and takes it to the gate.

    What is asked while the gate has not answered yet, as by a harness that makes several calls, goes there next.

    The episode's clock stands still meanwhile: how long the others take, and the sampler for all of them, is no fault
    of this episode, and on a slow machine must not end it.

    Args:
        gate: Ref of the `Gate` where the cohort is open.
        cohort: The episode's cohort.
        member: The episode's id.
        clock: The episode's.
    """

    def __init__(self, gate: Any, cohort: str, member: str, clock: EpisodeClock) -> None:
        self._gate, self._cohort, self._member, self._clock = gate, cohort, member, clock
        self._asked: list[tuple[SamplingRequest, asyncio.Future[SamplingReply]]] = []
        self._number = 0
        self._is_asking = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def sample(self, request: SamplingRequest) -> SamplingReply:
        """As a `Sampler`'s.

        Raises:
            ContextOverflowError: The prompt is longer than the context.
            SamplingError: The request can't be served.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[SamplingReply] = loop.create_future()
        self._asked.append((request, future))
        if len(self._asked) == 1 and not self._is_asking:
            # seats that act at the same time are tasks of one turn of the loop: all have asked when this runs
            loop.call_soon(self._flush)
        return await future

    def leave(self) -> None:
        """Say that the episode has ended."""
        for task in self._tasks:
            task.cancel()
        self._gate.tell.leave(self._cohort, self._member)

    def _flush(self) -> None:
        asked = [entry for entry in self._asked if not entry[1].done()]
        self._asked, self._is_asking = [], bool(asked)
        if not asked:
            return
        task = asyncio.get_running_loop().create_task(self._ask(self._number, asked))
        self._number += 1
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, number: int, asked: list[tuple[SamplingRequest, asyncio.Future[SamplingReply]]]) -> None:
        requests = tuple(request for request, _ in asked)
        # the boundary to the gate: what it raises goes to the agents that wait
        try:
            with self._clock.stopped():
                results = await self._gate.sample(self._cohort, self._member, number, requests)
        except Exception as error:  # whatever it is: the agents are to know
            for _, future in asked:
                if not future.done():
                    future.set_exception(error)
            results = ()
        for (_, future), result in zip(asked, results, strict=False):
            if future.done():
                continue
            if isinstance(result, SamplingReply):
                future.set_result(result)
            else:
                future.set_exception(result)
        self._flush()


def cohorts_of(plan: RolloutPlan) -> dict[str, tuple[str, ...]]:
    """The ids of a plan's rollouts by cohort, in its order."""
    found: dict[str, list[str]] = {}
    for rollout in plan.rollouts:
        found.setdefault(rollout.cohort, []).append(rollout.id)
    return {name: tuple(members) for name, members in found.items()}
