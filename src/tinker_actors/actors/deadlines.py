"""Deadlines: the ambient one that a block sets, and one coarse timer for all of a mesh's waits.

`async with deadline(2.0):` bounds everything awaited in the block, and travels with every ask made in it and with
the asks made while those are served. A nested block can only shorten it.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from tinker_actors.actors.call import Call, current_call
from tinker_actors.actors.errors import DeadlineExceeded

TICK = 0.005  # seconds: a deadline fires at most this much late


class deadline:  # noqa: N801 - reads as a statement, like asyncio.timeout
    """An async context manager; raises `DeadlineExceeded` when `seconds` pass before the block ends."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __aenter__(self) -> deadline:
        due = asyncio.get_running_loop().time() + self._seconds
        outer = current_call.get()
        chain, trace = (), None
        if outer is not None and outer.active:
            chain, trace = outer.chain, outer.trace
            if outer.deadline is not None:
                due = min(due, outer.deadline)
        self._call = Call(chain, due, trace)
        self._token = current_call.set(self._call)
        self._timeout = asyncio.timeout_at(due)
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.active = False
        current_call.reset(self._token)
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as expired:
            raise DeadlineExceeded(f"the block's deadline of {self._seconds:g} s passed") from expired.__cause__


Bucket = dict[asyncio.Future[Any], str | tuple[str, str]]
"""Futures with deadlines in the same tick; to take one out is to forget it."""


class CoarseTimer:
    """Fails futures with `DeadlineExceeded` at their deadline, all through one `call_at` at a time.

    Futures lie in buckets of `TICK` seconds; entering and leaving a bucket is a dict operation.
    """

    __slots__ = ("_armed", "_buckets", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, Bucket] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._armed = 0

    def add(self, future: asyncio.Future[Any], due: float, what: str | tuple[str, str]) -> Bucket:
        """Watch over `future`, until it is taken out of the bucket. `what` (or actor, method) names the wait."""
        tick = int(due / TICK) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            if self._handle is None or tick < self._armed:
                self._arm(tick)
        bucket[future] = what
        return bucket

    def close(self) -> None:
        """Drop every watch."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._buckets.clear()

    def _arm(self, tick: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed = tick
        self._handle = self._loop.call_at(tick * TICK, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = int(self._loop.time() / TICK + 1e-6)
        for tick in [tick for tick in self._buckets if tick <= now]:
            for future, what in self._buckets.pop(tick).items():
                if not future.done():
                    what = what if isinstance(what, str) else ".".join(what)
                    future.set_exception(DeadlineExceeded(f"{what} was not answered by its deadline"))
        if self._buckets:
            self._arm(min(self._buckets))
