"""Looking for the answer to an ask that is alone under way, for a moment before the loop sleeps.

Most of the time of such an ask goes to waking threads: of both processes the loop's and ZeroMQ's, each of which the
kernel likes to put on whichever core sleeps. A process that goes on looking needs no waking, and by keeping its core it
leaves the others to one that is awake: two thirds of the time, for half as much more processor time. Where other work
wants the cores it keeps them from those that make the answer, and where the answer takes long it is in vain. So both
ways are timed for each target and method, and that is taken which is faster; every 256 asks the other is tried again.
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

ROUND = 256  # asks, a power of two
TRIED = 32  # of these, in the other way
SETTLED = 8  # asks after a change of the way, until the kernel has moved threads to where they stay
GAIN = 0.95  # of the time that an ask takes without looking
SHARE = 0.125  # of the newest time in the average


_yield: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
"""Lets a thread that waits for this core have it: it may be one that carries the answer."""


def default_busy_poll() -> float:
    """How long a process that may use several cores looks, in seconds; with one core it would keep others from it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return BUSY_POLL if cores > 1 else 0.0


class Odds:
    """What asks for one method of a target take.

    Attributes:
        looks: whether the ask under way is looked for.
        asleep, looking: seconds that asks take on average without looking and with it; 0: not known yet.
    """

    __slots__ = ("_asks", "_since", "asleep", "looking", "looks")

    def __init__(self) -> None:
        self._asks = self._since = 0
        self.asleep = self.looking = 0.0
        self.looks = False

    def choose(self) -> bool:
        """Whether to look for the next answer."""
        is_faster = 0 < self.looking < GAIN * self.asleep
        looks = is_faster != (self._asks & (ROUND - 1) < TRIED)
        self._since = self._since + 1 if looks == self.looks else 0
        self.looks = looks
        self._asks += 1
        return looks

    def took(self, seconds: float) -> None:
        """What the last ask took; one that took much longer than others counts for no more than twice their time."""
        if self._since < SETTLED:
            return
        if self.looks:
            self.looking = _average(self.looking, seconds)
        else:
            self.asleep = _average(self.asleep, seconds)


def _average(average: float, newest: float) -> float:
    if not average or 2 * newest < average:  # the first asks find everything cold, and say little
        return newest
    return average + SHARE * (min(newest, 2 * average) - average)


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
        self._began = 0.0
        self._is_looking = False

    def begin(self, ask: PendingAsk, target: RemoteTarget, method: str, began: float) -> None:
        """An ask that is alone has been sent, since `began`; `end` must follow."""
        if self.seconds == 0:
            return
        if target.odds is None:
            target.odds = {}
        odds = target.odds.get(method)
        if odds is None:
            odds = target.odds[method] = Odds()
        self._for = ask
        self._odds = odds
        self._began = began
        if odds.choose() and not self._is_looking:
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
