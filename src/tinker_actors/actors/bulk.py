"""What all peers share of a node's way for large data: the arena, and the threads that copy."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from tinker_actors.actors import arena as shared_memory
from tinker_actors.actors.arena import Arena, Block
from tinker_actors.actors.codec import Frame

if TYPE_CHECKING:
    import numpy as np

    from tinker_actors.actors.lane import Lane
    from tinker_actors.actors.leases import Borrower

INLINE = 2 << 20  # bytes copied on the loop in `INLINE_EVERY` seconds; more goes to the threads
INLINE_EVERY = 0.0002  # about as long as the copy takes
THREADS = 2
PIECE = 4 << 20  # bytes
R = TypeVar("R")


class Bulk:
    """The arena of a node and the threads that copy into it.

    Attributes:
        limit: bytes of shared memory, 0 for none.
        returning: those that have something to give back.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int, max_message: int) -> None:
        self.loop = loop
        self.max_message = max_message
        self.limit = limit
        self._arena: Arena | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._copying = 0
        self._copied = 0  # bytes, on the loop, since `_since`
        self._since = 0.0
        self._lanes: set[Lane] = set()
        self.returning: deque[Borrower] = deque()
        self.closed = False

    @property
    def arena(self) -> Arena | None:
        """The arena, made when first wanted; None where there can be none."""
        if self._arena is None and self.limit > 0 and not self.closed and shared_memory.available():
            try:
                self._arena = Arena(self.loop, self.limit)
            except OSError:
                self.limit = 0
        return self._arena

    def join(self, lane: Lane) -> None:
        """A lane is open."""
        self._lanes.add(lane)

    def forget(self, lane: Lane) -> None:
        """A lane is closed."""
        self._lanes.discard(lane)

    def array(self, shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
        """An array in the arena, or in ordinary memory if the arena has no room."""
        import numpy as np

        arena = self.arena
        array = None if arena is None else arena.array(shape, dtype)
        self.tell_dropped()
        return np.empty(shape, dtype) if array is None else array

    def place(self, value: Any) -> Any:
        """A copy of an array or a tensor in the arena."""
        import numpy as np

        if type(value) is np.ndarray:
            given: np.ndarray[Any, Any] = value
            array = self.array(given.shape, given.dtype)
            np.copyto(array, given)
            array.flags.writeable = False
            return array
        import torch

        if not isinstance(value, torch.Tensor):
            raise TypeError(f"put takes a NumPy array or a torch tensor, got {type(value).__name__}")
        size = value.numel() * value.element_size()
        memory: Any = self.array(size, "uint8")
        tensor = torch.frombuffer(memory, dtype=value.dtype).reshape(value.shape) if size else torch.empty_like(value)
        return tensor.copy_(value.detach())

    def copies_now(self, size: int) -> bool:
        """Whether `size` bytes, which this counts, may be copied on the loop now."""
        now = perf_counter()  # the loop's own time may stand still for a turn, and count milliseconds
        if now - self._since > INLINE_EVERY:
            self._since = now
            self._copied = 0
        if self._copying or self._copied + size > INLINE:
            return False
        self._copied += size
        return True

    def copy(self, frame: Frame, block: Block, done: Callable[[], None]) -> None:
        """Copy a buffer into a block in the threads, which take pieces in turn."""
        import numpy as np

        source = np.frombuffer(frame, np.uint8)
        size = source.nbytes
        target = block.root(size)
        pieces = iter([(target[at : at + PIECE], source[at : at + PIECE]) for at in range(0, size, PIECE)])
        working = min(THREADS, -(-size // PIECE))
        self._copying += 1

        def finish(_: Future[None]) -> None:
            nonlocal working
            working -= 1
            if not working:
                self._copying -= 1
                done()

        for _ in range(working):
            self.in_thread(_copy, pieces, done=finish)

    def in_thread(self, function: Callable[..., R], *args: Any, done: Callable[[Future[R]], None]) -> None:
        """Run a function that works without the interpreter's lock; `done` is called on the loop."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "bulk")

        def finished(future: Future[R]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(done, future)

        self._threads.submit(function, *args).add_done_callback(finished)

    def give_back(self) -> None:
        """Give back what nobody here reads any more, in the messages that are about to leave."""
        returning = self.returning
        while returning:  # any thread may add to it, this one alone takes from it
            returning.popleft().give_back()

    def tell_dropped(self) -> None:
        """Let the peers unmap what the arena has given back to the system."""
        arena = self._arena
        if arena is not None and arena.dropped:
            dropped, arena.dropped = arena.dropped, []
            for lane in self._lanes:
                lane.drop(dropped)

    def close(self) -> None:
        """Close the lanes and give the memory back."""
        self.closed = True
        for lane in list(self._lanes):
            lane.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._arena is not None:
            self._arena.close()


def _copy(pieces: Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> None:
    import numpy as np

    for target, source in pieces:  # an iterator over a list gives each of its items to one thread
        np.copyto(target, source)
