"""The pulse of an event loop: how late it runs, what blocks it, which handlers take long.

A timer on the loop beats a few times a second and measures how late it is. A thread watches the beats: where one
fails to come, the loop is blocked, and the thread logs what runs on it, with the stack. Only the loop's own thread
can block it, so the handler that runs at that moment is the culprit.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import traceparent
from tinker_actors.actors.checks import check_seconds
from tinker_actors.actors.control import SYSTEM_IDS
from tinker_actors.actors.message import StreamMessage

if TYPE_CHECKING:
    from tinker_actors.actors.cell import Cell
    from tinker_actors.actors.node import Node

logger = logging.getLogger(__name__)

BEAT = 0.25  # seconds from beat to beat, at most
LAG_BEATS = 40  # beats that `lag` looks back over
QUIET = 30.0  # seconds without another warning about the same method
_REMEMBERED = 1000  # methods whose last warning is known


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """When to warn or to look closer, in seconds; None: never.

    Attributes:
        slow_handler: a handler of an ask or a tell has run for so long.
        blocked_loop: the event loop has not turned for so long.
        ask_cycle: an ask has waited so long behind a handler that waits for an ask itself; see `cycles`.
    """

    slow_handler: float | None = None
    blocked_loop: float | None = 1.0
    ask_cycle: float | None = 0.25

    def __post_init__(self) -> None:
        for name in ("slow_handler", "blocked_loop", "ask_cycle"):
            value = getattr(self, name)
            if value is not None:
                check_seconds(name, value, above=0, otherwise=", or None for never")


class Quiet:
    """Lets one warning about a thing through every `QUIET` seconds and counts the others."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}

    def passes(self, what: str) -> str | None:
        """None if there was a warning about `what` lately; else what to add to this one, mostly nothing."""
        now = time.monotonic()
        last, left_out = self._last.get(what, (-QUIET, 0))
        if now - last < QUIET:
            self._last[what] = (last, left_out + 1)
            return None
        if len(self._last) >= _REMEMBERED:
            self._last.clear()
        self._last[what] = (now, 0)
        return f" ({left_out} more since the last such warning)" if left_out else ""


class Pulse:
    """Beats on the loop that makes it until closed."""

    def __init__(self, node: Node, thresholds: Thresholds) -> None:
        self._node = node
        self._loop = node.loop
        self._thresholds = thresholds
        shortest = min((each for each in (thresholds.slow_handler, thresholds.blocked_loop) if each), default=4 * BEAT)
        self._period = min(BEAT, shortest / 4)
        self._lags: deque[float] = deque(maxlen=LAG_BEATS)
        self._running: dict[object, float] = {}  # what is being served, and since when at least
        self._warned: set[object] = set()
        self._quiet = Quiet()
        self._beat_at = time.monotonic()
        self._cpu = time.process_time()
        self._reported = False  # the present blockage has been warned of
        self._ends = threading.Event()
        self._loop_thread = threading.get_ident()
        self._handle = self._loop.call_later(self._period, self._beat)
        self._thread: threading.Thread | None = None
        if thresholds.blocked_loop is not None:
            self._thread = threading.Thread(target=self._watch, args=(thresholds.blocked_loop,), daemon=True)
            self._thread.name = "tinker-actors-watchdog"
            self._thread.start()

    @property
    def lag(self) -> float:
        """Seconds that the loop was late at most, in about the last ten, the present moment included."""
        return max(*self._lags, time.monotonic() - self._beat_at - self._period, 0.0)

    def close(self) -> None:
        """Stop."""
        self._handle.cancel()
        self._ends.set()
        if self._thread is not None:
            self._thread.join()

    # On the loop

    def _beat(self) -> None:
        now, cpu = time.monotonic(), time.process_time()
        late = max(0.0, now - self._beat_at - self._period)
        self._lags.append(late)
        blocked = self._thresholds.blocked_loop
        # The watching thread reports what it can. It can't while foreign code holds the interpreter; a process that
        # was merely suspended used no time.
        if blocked is not None and late > blocked and not self._reported and cpu - self._cpu > late / 2:
            self._warn_afterwards(late)
        self._reported = False
        self._beat_at, self._cpu = now, cpu
        traceparent.find_library()
        if self._thresholds.slow_handler is not None:
            self._look_for_slow(now, self._thresholds.slow_handler)
        self._handle = self._loop.call_later(self._period, self._beat)

    def _warn_afterwards(self, late: float) -> None:
        more = self._quiet.passes("")
        if more is not None:
            logger.warning(
                "node %d: the event loop was blocked for %.2f s by native code that kept all other threads waiting%s",
                self._node.index,
                late,
                more,
            )

    def _look_for_slow(self, now: float, threshold: float) -> None:
        """Warn of handlers that still run after `threshold` seconds. One that ends between two beats isn't seen."""
        before, self._running = self._running, {}
        for cell in self._node.cells.values():
            if cell.id < SYSTEM_IDS:
                continue
            message = cell.running
            if message is not None and not isinstance(message, StreamMessage):
                key: object = (cell.id, cell.served)
                self._check_slow(cell, message.method, cell.handling, key, before.get(key, now), now - threshold)
            for message, task in cell.concurrent.items():
                if not isinstance(message, StreamMessage):
                    self._check_slow(
                        cell, message.method, task.get_coro(), task, before.get(task, now), now - threshold
                    )
        self._warned &= self._running.keys()

    def _check_slow(self, cell: Cell, method: str, waits: Any, key: object, since: float, limit: float) -> None:
        self._running[key] = since
        if since > limit or key in self._warned:
            return
        self._warned.add(key)
        label = f"{cell.cls.__qualname__}.{method}"
        more = self._quiet.passes(label)
        if more is not None:
            logger.warning(
                "actor %s has been serving %s for over %.2f s; it waits at %s%s",
                cell.name,
                label,
                self._thresholds.slow_handler,
                where_it_waits(waits),
                more,
            )

    # In the watching thread

    def _watch(self, threshold: float) -> None:
        pause = min(self._period, threshold / 4)
        went_on_at = 0.0
        while True:
            slept_at = time.monotonic()
            if self._ends.wait(pause):
                return
            now = time.monotonic()
            if now - slept_at > pause + threshold / 2:
                went_on_at = now  # this thread was held up too: the whole process stood still, or all other threads did
            since = max(self._beat_at, went_on_at)
            if not self._reported and now - since > self._period + threshold:
                self._reported = True
                self._warn_blocked(now - self._beat_at - self._period)

    def _warn_blocked(self, late: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
        if frame is None:
            return
        stack = traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False)
        what, advice = advised(frame) or (self._on_the_loop(), "blocking work belongs into asyncio.to_thread")
        del frame  # the loop goes on meanwhile, and what the frame holds is not ours to keep
        stack.reverse()
        more = self._quiet.passes(what)
        if more is not None:
            logger.warning(
                "node %d: the event loop has been blocked for %.2f s by %s%s; %s\n%s",
                self._node.index,
                late,
                what,
                more,
                advice,
                "".join(stack.format()).rstrip(),
            )

    def _on_the_loop(self) -> str:
        """What the loop's present step belongs to. The loop stands still, so its tables don't change meanwhile."""
        task = asyncio.current_task(self._loop)
        if task is None:
            return "a callback"
        for cell in list(self._node.cells.values()):
            if cell.task is task:
                what = cell.running.method if cell.running is not None else "on_start, on_stop or its constructor"
                return f"{cell.cls.__qualname__}.{what} (actor {cell.name})"
            for message, own in list(cell.concurrent.items()):
                if own is task:
                    return f"{cell.cls.__qualname__}.{message.method} (actor {cell.name})"
        return f"task {task.get_name()}"


def advised(frame: FrameType | None) -> tuple[str, str] | None:
    """The outermost method on a stack whose class has a `__blocking_advice__`, and that: what is to be done."""
    found: tuple[str, str] | None = None
    while frame is not None:
        if _may_advise(frame):
            owner: object = frame.f_locals.get("self")
            kind = type(owner)
            if isinstance(advice := getattr(kind, "__blocking_advice__", None), str):
                found = f"{kind.__qualname__}.{frame.f_code.co_name}", advice
        frame = frame.f_back
    return found


def _may_advise(frame: FrameType) -> bool:
    """Whether a frame is one of a method whose class may have advice.

    Up to Python 3.12 a frame that was asked for its locals keeps them until it ends, so few are asked.
    """
    code = frame.f_code
    owner = code.co_qualname.split(".")[:-1]
    if code.co_varnames[:1] != ("self",) or not owner:
        return False
    if "<locals>" in owner:
        return True  # where such a class is can't be looked up
    kind = frame.f_globals.get(owner[0])
    for name in owner[1:]:
        kind = getattr(kind, name, None)
    return hasattr(kind, "__blocking_advice__")


def awaited(waits: Any) -> Any:
    """What a suspended coroutine or generator awaits, if that is another one."""
    return getattr(waits, "cr_await", None) or getattr(waits, "gi_yieldfrom", None) or getattr(waits, "ag_await", None)


def where_it_waits(waits: Any) -> str:
    """The innermost place at which a suspended coroutine or generator waits, as `file:line in function`."""
    frame = None
    while waits is not None:
        inner = getattr(waits, "cr_frame", None) or getattr(waits, "gi_frame", None) or getattr(waits, "ag_frame", None)
        if inner is None:
            break
        frame = inner
        waits = awaited(waits)
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
