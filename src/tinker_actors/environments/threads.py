"""Threads for what would hold up the event loop: an environment whose methods block, and much work at once."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_LITTLE = 2**14
"""Bytes that are worked through in less time than a thread takes to be woken."""


async def beside(work: Callable[[], T], *, size: int) -> T:
    """Do work over so many bytes: much of it in a thread beside the loop, little of it at once, which costs less."""
    return work() if size < _LITTLE else await asyncio.to_thread(work)


class CallThread:
    """Runs calls one at a time, in order, in one daemon thread.

    One thread per episode: an environment may keep things that belong to a thread, and one that never returns holds
    nobody else up, neither a shared pool nor the end of the process.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function in the thread, after the calls before it.

        Cancelling the wait doesn't stop a call that has begun; one that has not begun is still made, so that a
        `close` queued behind a stuck call happens if that call ever returns.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls.put((lambda: function(*args), future))
        return await future

    def end(self) -> None:
        """Let the thread end once the calls made so far are through."""
        self._calls.put(None)

    def _run(self) -> None:
        while (entry := self._calls.get()) is not None:
            call, future = entry
            result, error = None, None
            # The boundary between the thread and the loop: whatever is raised belongs to the caller.
            try:
                result = call()
            except BaseException as raised:  # handed to whoever waits for the call
                error = raised
            try:
                self._loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:  # the loop was closed while the call ran; nobody waits any more
                return


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):  # a future refuses it
        future.set_exception(RuntimeError(f"the environment raised StopIteration({error.value!r})"))
    else:
        future.set_exception(error)
