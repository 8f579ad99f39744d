"""Messages that arrive while the data that they bring is still being copied into shared memory.

Waking another process takes about as long as copying a MiB. So a message leaves first, and the copy is made while it is
on its way; a mark beside the block says that the data is whole. A receiver that is there too early waits for the mark,
which takes some microseconds. If the sender was interrupted, the message is put aside with all that follow it from
there, and looked after later.

The mark is an ordinary 8-byte store after the copy, which other processors see in that order on x86 only. Elsewhere,
and where there is only one core, the data is copied first.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import platform
from collections import deque
from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Any

from tinker_actors.actors.codec import Frame
from tinker_actors.actors.errors import CodecError
from tinker_actors.actors.leases import Loan, Mark
from tinker_actors.actors.lookout import cores

PATIENCE = 0.0002  # seconds that a receiver waits for a mark: more than copying takes
LATER = 0.0005  # seconds until it looks again
TOO_LATE = 10.0  # seconds after which data is not waited for: its sender was torn out of the copy, and goes on
ASIDE_EVERY = 0.002  # seconds: moving to another core costs 40 us

COPIES_LAST = platform.machine() in ("x86_64", "AMD64") and cores() > 1
"""Whether messages leave before their data is copied."""


current_core: Callable[[], int] = getattr(ctypes.CDLL(None), "sched_getcpu", lambda: -1)
"""The core that this thread is on."""

Batch = tuple[bytes, Any]
"""Envelopes and their frames; those of the first that is kept are a list."""


class LateData:
    """What a node has received and can't read yet.

    Args:
        loop: The loop.
        known: The peers that there are, by the names they send under.
        receive: Reads a batch of a sender; its last argument says that the frames have been found and are whole.

    Attributes:
        held: batches by their sender's name. The first has its data and waits for it to be whole, the others wait for
            the first.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        known: Collection[bytes],
        receive: Callable[[bytes, bytes, Sequence[Frame], bool], None],
    ) -> None:
        self.held: dict[bytes, deque[Batch]] = {}
        self._loop = loop
        self._known = known
        self._receive = receive
        self._aside = 0.0

    def takes(self, identity: bytes, data: bytes, frames: Sequence[Frame]) -> bool:
        """Whether a batch is kept because one before it from the same sender is."""
        waiting = self.held.get(identity)
        if waiting is None:
            return False
        waiting.append((data, frames))
        return True

    def is_whole(self, identity: bytes, data: bytes, frames: list[Frame]) -> bool:
        """Whether the data of a batch is whole, now or within `PATIENCE`; if not, the batch is kept until it is.

        An error takes the place of data that never will be.
        """
        if self._are_whole(frames):
            return True
        self.held[identity] = deque([(data, frames)])
        self._loop.call_later(LATER, self._look, identity, perf_counter() + TOO_LATE)
        return False

    def _look(self, identity: bytes, until: float) -> None:
        waiting = self.held.get(identity)
        if waiting is None:  # the node is closed
            return
        if identity not in self._known:  # its sender is gone, and whoever waits there for an answer
            del self.held[identity]
            return
        frames = waiting[0][1]
        if not self._are_whole(frames):
            if perf_counter() < until:
                self._loop.call_later(LATER, self._look, identity, until)
                return
            error = CodecError(f"the data of a message was not written within {TOO_LATE:g} s")
            frames[:] = [frame if _is_whole(frame) else error for frame in frames]
        del frames
        del self.held[identity]
        self._receive(identity, *waiting.popleft(), True)
        while waiting:  # one of which may have to be kept again, and then the rest behind it
            self._receive(identity, *waiting.popleft(), False)

    def _are_whole(self, frames: list[Frame]) -> bool:
        for index, frame in enumerate(frames):
            mark = frame.mark if frame.__class__ is Loan else None
            if mark is None:
                continue
            if mark.core == current_core():
                self._step_aside(mark.core)
            if not mark.is_set and not _wait(mark):
                return False
            if mark.is_broken:
                frames[index] = CodecError("its sender failed to write the data of a message")
        return True

    def _step_aside(self, core: int) -> None:
        """Move this thread to another core, as the kernel would in time: on this one the sender is still copying."""
        now = perf_counter()
        if now < self._aside + ASIDE_EVERY:
            return
        self._aside = now
        with contextlib.suppress(OSError):  # it is not allowed everywhere, and not needed
            allowed = os.sched_getaffinity(0)
            if len(allowed) > 1:
                try:
                    os.sched_setaffinity(0, allowed - {core})
                finally:  # a signal's handler may raise in between
                    os.sched_setaffinity(0, allowed)


def _is_whole(frame: Frame) -> bool:
    return frame.__class__ is not Loan or frame.mark is None or frame.mark.is_set


def _wait(mark: Mark) -> bool:
    until = perf_counter() + PATIENCE
    while not mark.is_set:
        if perf_counter() > until:
            return False
        os.sched_yield()
    return True
