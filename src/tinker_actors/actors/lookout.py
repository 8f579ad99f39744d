"""Looking for the answer to an ask that is alone under way, for a moment before the loop sleeps.

Most of the time of such an ask goes to waking threads: of both processes the loop's and ZeroMQ's, each of which the
kernel likes to put on whichever core sleeps. A process that goes on looking needs no waking, and by keeping its core it
leaves the others to one that is awake: two thirds of the time, for half as much more processor time. Where other work
wants the cores it keeps them from those that make the answer, and where the answer takes long it is in vain. So both
ways are timed for each method of a class in each process, and that is taken which is faster; now and then the other is
tried again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sized
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinker_actors.actors.link import Inbound
    from tinker_actors.actors.pending import PendingAsk
    from tinker_actors.actors.remote import RemoteTarget

BUSY_POLL = 0.0002
"""Seconds, where there is more than one core: twice what an answer takes that comes at once."""

BLOCK = 32  # asks in the same way
COUNTED = 24  # at the end of a block, when the kernel has moved threads to where they stay
SHORTEST, LONGEST = 2, 32  # blocks in the faster way before the other is tried; twice as many each time that it stays
GAIN = 0.95  # of the time that an ask takes without looking
KNOWN = 4096  # processes, classes and methods
PAUSE = 0.01  # seconds without an ask
ALONE = 4  # asks after a pause that are slept for: those that come now and then aren't worth a core
WARMING = 32  # asks after a pause whose times say nothing: caches are cold, and threads lie wherever they were left


_yield: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
"""Lets a thread that waits for this core have it: it may be one that carries the answer."""


def default_busy_poll() -> float:
    """How long a process that may use several cores looks, in seconds; with one core it would keep others from it."""
    return BUSY_POLL if cores() > 1 else 0.0


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Odds:
    """What asks for one method take that a process's actors of one class answer.

    Attributes:
        looks: whether the ask under way is looked for.
        asleep, looking: seconds that an ask takes without looking and with it: the median of when it was last tried.
    """

    __slots__ = (
        *("asleep", "looking", "looks"),
        *("_began", "_blocks", "_counts", "_is_trial", "_left", "_length", "_times", "_warming", "_way"),
    )

    def __init__(self) -> None:
        self.asleep = self.looking = 0.0
        self.looks = False
        self._way = True  # whether asks of this block are looked for
        self._counts = False
        self._is_trial = False
        self._left = BLOCK
        self._blocks = self._length = SHORTEST
        self._began = 0.0
        self._warming = WARMING
        self._times: list[float] = []  # of this block

    def choose(self, began: float) -> bool:
        """Whether to look for the answer to an ask that began at this time."""
        if began > self._began + PAUSE:
            self._warming = WARMING
        self._began = began
        if self._warming:
            self._warming -= 1
            self.looks = self._way and self._warming < WARMING - ALONE
            self._counts = False
            return self.looks
        self._counts = True
        if not self._left:
            self._left = BLOCK
            self._turn()
        self._left -= 1
        self.looks = self._way
        return self.looks

    def took(self, seconds: float) -> None:
        """What the last ask took."""
        if self._counts:
            self._times.append(seconds)

    def _turn(self) -> None:
        """Decide in which way the next block is asked."""
        if self._times:
            counted = sorted(self._times[-COUNTED:])
            median = counted[len(counted) // 2]
            self._times.clear()
            if self._way:
                self.looking = median
            else:
                self.asleep = median
        faster = self.looking < GAIN * self.asleep
        if self._is_trial:
            self._length = SHORTEST if faster is self._way else min(2 * self._length, LONGEST)
            self._blocks = self._length
            self._is_trial = False
            self._way = faster
            return
        self._blocks -= 1
        if not self._blocks or faster is not self._way:  # it's time, or this way has become slow
            self._is_trial = True
            self._way = not self._way


class Lookout:
    """Looks for the answers to asks that are alone, in between the loop's other work.

    Args:
        loop: The loop.
        seconds: How long it looks for an answer; 0 for not at all, None for what suits the number of cores.
        pending: What the process waits for from others.

    Attributes:
        seconds: how long it looks.
        inbounds: where it looks.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float | None, pending: Sized) -> None:
        self._loop = loop
        self.seconds = default_busy_poll() if seconds is None else seconds
        self.inbounds: list[Inbound] = []
        self._pending = pending
        self._for: PendingAsk | None = None
        self._odds = Odds()
        self._known: dict[tuple[int, str, str], Odds] = {}
        self._began = 0.0
        self._is_looking = False

    def begin(self, ask: PendingAsk, target: RemoteTarget, method: str, began: float) -> None:
        """An ask that is alone has been sent, since `began`; `end` must follow."""
        if self.seconds == 0:
            return
        address = target.address
        key = (address.node, address.kind, method)
        odds = self._known.get(key)
        if odds is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            odds = self._known[key] = Odds()
        self._for = ask
        self._odds = odds
        self._began = began
        if odds.choose(began) and not self._is_looking:
            self._is_looking = True
            self._loop.call_soon(self._look)

    def end(self, ask: PendingAsk) -> None:
        """Whoever asked goes on, with an answer or without."""
        if self._for is ask:
            self._for = None
            if ask.done and not self._pending:
                self._odds.took(perf_counter() - self._began)

    def _look(self) -> None:
        ask = self._for
        if ask is not None and self._odds.looks and not ask.done and len(self._pending) == 1:
            _yield()
            for inbound in self.inbounds:
                inbound.read()
            if not ask.future.done() and perf_counter() < self._began + self.seconds:
                self._loop.call_soon(self._look)
                return
        self._is_looking = False
