"""Deadlines: the ambient one that a block sets, and one coarse timer for all of a mesh's waits.

`async with deadline(2.0):` bounds everything awaited in the block, and travels with every ask made in it and with
the asks made while those are served. A nested block can only shorten it.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tinker_actors.actors.call import ACTIVE, Call, current_call, present
from tinker_actors.actors.checks import check_seconds
from tinker_actors.actors.errors import DeadlineExceeded

if TYPE_CHECKING:
    from tinker_actors.actors.pending import Pending

TICK = 0.005  # seconds: a deadline fires at most this much late
FEW = 512  # buckets of the timer that are never too many
SWEEP = 1.0  # seconds between looks at the deadlines that are far away
FAR = 2 * SWEEP  # seconds


class deadline:  # noqa: N801 - reads as a statement, like asyncio.timeout
    """An async context manager; raises `DeadlineExceeded` when `seconds` pass before the block ends."""

    def __init__(self, seconds: float) -> None:
        check_seconds("deadline", seconds)
        self._seconds = seconds

    async def __aenter__(self) -> deadline:
        due = asyncio.get_running_loop().time() + self._seconds
        chain, outer_due, trace = present()
        if outer_due is not None:
            due = min(due, outer_due)
        self._call: Call = [chain, due, trace, True]
        self._token = current_call.set(self._call)
        self._timeout = asyncio.timeout_at(due)
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call[ACTIVE] = False
        current_call.reset(self._token)
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as expired:
            raise DeadlineExceeded(f"the block's deadline of {self._seconds:g} s passed") from expired.__cause__


async def room(waiter: asyncio.Future[None], timeout: float | None, what: str) -> None:
    """Await the room for a tell, for `timeout` seconds at most; `what` names it.

    Raises:
        DeadlineExceeded: There was none.
    """
    expiry = asyncio.timeout(timeout)
    try:
        async with expiry:
            await waiter
    except TimeoutError:
        if not expiry.expired():
            raise
        raise DeadlineExceeded(f"{what} found no room by its deadline") from None


Bucket = dict[asyncio.Future[Any], str | tuple[str, str]]
"""Futures with deadlines in the same tick; to take one out is to forget it."""


class CoarseTimer:
    """Fails futures with `DeadlineExceeded` at their deadline, all through one `call_at` at a time.

    Futures lie in buckets of `TICK` seconds; entering and leaving a bucket is a dict operation. Buckets that all have
    left are thrown away now and then, so that there are never many more than are in use.
    """

    __slots__ = ("_armed", "_buckets", "_handle", "_loop", "_most", "_ticks")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, Bucket] = {}
        self._ticks: list[int] = []  # their keys, as a heap
        self._most = FEW  # buckets until the next look for empty ones
        self._handle: asyncio.TimerHandle | None = None
        self._armed = 0

    def __len__(self) -> int:
        """The number of buckets."""
        return len(self._buckets)

    def add(self, future: asyncio.Future[Any], due: float, what: str | tuple[str, str]) -> Bucket:
        """Watch over `future`, until it is taken out of the bucket. `what` (or actor, method) names the wait."""
        tick = int(due / TICK) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            if len(self._buckets) >= self._most:
                self._throw_away()
            bucket = self._buckets[tick] = {}
            heappush(self._ticks, tick)
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
        self._ticks.clear()

    def _throw_away(self) -> None:
        """Forget the buckets that are empty."""
        self._buckets = {tick: bucket for tick, bucket in self._buckets.items() if bucket}
        self._ticks = sorted(self._buckets)
        self._most = max(FEW, 2 * len(self._buckets))

    def _arm(self, tick: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed = tick
        self._handle = self._loop.call_at(tick * TICK, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = int(self._loop.time() / TICK + 1e-6)
        while self._ticks and self._ticks[0] <= now:
            for future, what in self._buckets.pop(heappop(self._ticks)).items():
                if not future.done():
                    what = what if isinstance(what, str) else ".".join(what)
                    future.set_exception(DeadlineExceeded(f"{what} was not answered by its deadline"))
        if self._ticks:
            self._arm(self._ticks[0])


class FarDeadlines:
    """Looks now and then which of the asks to other nodes have come near their deadlines; a timer has those.

    Nearly every ask is answered long before a deadline that is far away, and so never meets a timer at all.

    Attributes:
        is_awake: whether it looks; `wake` lets it.
    """

    __slots__ = ("_handle", "_loop", "_pending", "_timer", "is_awake")

    def __init__(self, loop: asyncio.AbstractEventLoop, timer: CoarseTimer, pending: dict[int, Pending]) -> None:
        self._loop = loop
        self._timer = timer
        self._pending = pending
        self._handle: asyncio.TimerHandle | None = None
        self.is_awake = False

    def wake(self) -> None:
        """There is a deadline again that is more than `FAR` away."""
        self.is_awake = True
        self._handle = self._loop.call_later(SWEEP, self._sweep)

    def close(self) -> None:
        """Look no more."""
        if self._handle is not None:
            self._handle.cancel()

    def _sweep(self) -> None:
        far = False
        near = self._loop.time() + FAR
        for pending in self._pending.values():
            if pending.due is not None:
                if pending.due <= near:
                    pending.watch(self._timer)
                else:
                    far = True
        self.is_awake = far
        if far:
            self._handle = self._loop.call_later(SWEEP, self._sweep)
