"""What a client's calls give: a result that is awaited, or waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from tinker_actors.errors import ConfigError

T = TypeVar("T")


class ApiFuture(Generic[T]):
    """The result of a call that is under way.

    `await future` in async code, `future.result()` elsewhere. The call was made when the future was given: later ones
    come after it, whether or not anybody waits.
    """

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, T]:
        return self.result_async().__await__()

    async def result_async(self, timeout: float | None = None) -> T:
        """The result.

        Raises:
            TimeoutError: It isn't there after so many seconds; the call goes on.
        """
        waiting = asyncio.wrap_future(self._future)
        async with asyncio.timeout(timeout):
            return await (waiting if timeout is None else asyncio.shield(waiting))

    def result(self, timeout: float | None = None) -> T:
        """The result, waited for by this thread.

        Raises:
            TimeoutError: It isn't there after so many seconds; the call goes on.
        """
        return self._future.result(timeout)

    def future(self) -> Future[T]:
        """The same for libraries that take a `concurrent.futures.Future`; cancelling it cancels the call."""
        return self._future


class LoopThread:
    """An event loop on a thread of its own, so that one client serves async code, blocking code and notebooks alike.

    Args:
        name: The thread's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = False

    def call(self, work: Coroutine[Any, Any, T]) -> ApiFuture[T]:
        """Begin some work; what is begun first runs first up to where it waits.

        Raises:
            ConfigError: The client was closed.
        """
        with self._lock:  # else it may end between, and nobody would ever do the work
            try:
                loop = self._started()
            except ConfigError:
                work.close()
                raise
            return ApiFuture(asyncio.run_coroutine_threadsafe(work, loop))

    def end(self) -> None:
        """Stop the loop and wait for its thread; work under way is cancelled."""
        with self._lock:
            loop, self._loop, self._ended = self._loop, None, True
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._ended:
            raise ConfigError("the client was closed; make another one")
        if self._loop is None:
            ready = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(ready,), name=self._name, daemon=True)
            self._thread.start()
            ready.wait()
        assert self._loop is not None
        return self._loop

    def _run(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            ready.set()
            self._loop.run_forever()
