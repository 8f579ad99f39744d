"""The reader's end of a stream, the same for a producer in this process and in another."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tinker_actors.actors.errors import DeadlineExceeded
from tinker_actors.actors.failures import portable
from tinker_actors.actors.message import StreamMessage

if TYPE_CHECKING:
    from tinker_actors.actors.deadlines import CoarseTimer


class Source(Protocol):
    """The way back to the producer."""

    def grant(self, count: int) -> None:
        """Allow `count` more items."""
        ...

    def abandon(self) -> None:
        """Nobody reads any more: cancel the producer."""
        ...


class Stream:
    """An async iterator over a stream's items; the call is sent when the first item is asked for.

    The producer runs at most `buffer` items ahead. Leaving the loop early drops the iterator, which cancels the
    producer; `aclose()` does it at once, so `contextlib.aclosing` works.
    """

    def __init__(
        self,
        begin: Callable[[Stream], Source],
        *,
        loop: asyncio.AbstractEventLoop,
        timer: CoarseTimer,
        due: float | None,
        buffer: int,
        what: str,
    ) -> None:
        self.buffer = buffer
        self._begin = begin
        self._loop = loop
        self._timer = timer
        self._due = due
        self._what = what
        self._items: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._source: Source | None = None
        self._taken = 0
        self._ended = False
        self._error: BaseException | None = None

    def push(self, item: Any) -> None:
        """The producer's next item."""
        self._items.append(item)
        self._notify()

    def finish(self, error: BaseException | None) -> None:
        """The producer ended, well or with `error`."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._notify()

    def open(self) -> Stream:
        """Send the call now rather than with the first `anext`."""
        if self._source is None and not self._ended:
            self._source = self._begin(self)
        return self

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        self.open()
        if self._due is not None and not self._ended and self._loop.time() >= self._due:
            self._abandon()
            raise DeadlineExceeded(f"{self._what} was not read to its end by its deadline")
        if self._waiter is not None:
            raise RuntimeError(f"{self._what} is being read by another task; one at a time may read a stream")
        while not self._items:
            if self._ended:
                error, self._error = self._error, None
                if error is None:
                    raise StopAsyncIteration
                raise error
            await self._wait()
        item = self._items.popleft()
        self._taken += 1
        if self._taken * 2 >= self.buffer and self._source is not None and not self._ended:
            self._source.grant(self._taken)
            self._taken = 0
        return item

    async def aclose(self) -> None:
        """Stop reading; the producer is cancelled if it still runs, and a task that waits for an item gets the end."""
        self._items.clear()
        self._abandon()
        self._notify()

    def __del__(self) -> None:
        # The collector may run in any thread, and the loop may be gone.
        if self._source is not None and not self._ended and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._source.abandon)

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _abandon(self) -> None:
        if not self._ended:
            self._ended = True
            if self._source is not None:
                self._source.abandon()

    async def _wait(self) -> None:
        waiter = self._waiter = self._loop.create_future()
        bucket = None if self._due is None else self._timer.add(waiter, self._due, self._what)
        try:
            await waiter
        except DeadlineExceeded:
            self._abandon()
            raise
        finally:
            self._waiter = None
            if bucket is not None:
                bucket.pop(waiter, None)


class LocalStream(StreamMessage):
    """A stream within one process: items pass by reference."""

    __slots__ = ("_cancel", "_reader")

    _cancel: Callable[[StreamMessage], None]
    _reader: weakref.ref[Stream]

    def connect(self, reader: Stream, cancel: Callable[[StreamMessage], None]) -> None:
        """Bind to the reader weakly, so that a dropped reader can abandon the stream."""
        self._reader = weakref.ref(reader)
        self._cancel = cancel
        self.credits = reader.buffer

    def put(self, item: Any) -> None:
        reader = self._reader()
        if reader is not None:
            reader.push(item)

    def succeed(self, value: Any) -> None:
        self._finish(None)

    def fail(self, error: BaseException) -> None:
        self._finish(portable(error))

    def abandon(self) -> None:
        """The reader is gone."""
        if not self.done:
            self._cancel(self)

    def _finish(self, error: BaseException | None) -> None:
        self.done = True
        reader = self._reader()
        if reader is not None:
            reader.finish(error)
