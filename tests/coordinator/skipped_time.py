"""An event loop that waits for no time: it is that time at once. For tests without sockets and threads."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable
from typing import Any


class _Selector(selectors.DefaultSelector):
    skipped = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.skipped += timeout or 0.0
        return super().select(timeout and 0.0)


class SkippingLoop(asyncio.SelectorEventLoop):
    """Its time passes in its waits alone, however long what runs between them takes."""

    def __init__(self) -> None:
        self._passes = _Selector()
        super().__init__(self._passes)

    def time(self) -> float:
        return self._passes.skipped


def in_skipped_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a test in such a loop."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        async def tested() -> None:
            await test(*args, **named)

        with asyncio.Runner(loop_factory=SkippingLoop) as runner:
            runner.run(tested())

    return run
