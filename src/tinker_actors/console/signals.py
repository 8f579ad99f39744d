"""How long commands end by a signal: properly by the first one, at once by a second."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def until_done_or_signalled(
    work: Coroutine[Any, Any, object],
    *,
    told: Callable[[int], object] = lambda _: None,
    leave: Callable[[int], object] | None = None,
) -> int | None:
    """Await work. The first signal cancels it; a second one ends the process, and its children go with it.

    Args:
        work: What to await.
        told: Hears of the first signal, by its number, before the work is cancelled.
        leave: Ends the process with an exit code; `leave_at_once` if not given.

    Returns:
        The first signal's number once the work has cleaned up after it; None if none came.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    received: list[int] = []

    def stop(number: int) -> None:
        if received:
            (leave or leave_at_once)(128 + number)
        received.append(number)
        told(number)
        task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    return received[0] if received else None


@contextmanager
def left_at_once_by_signals() -> Iterator[None]:
    """In the block a signal ends the process there and then; for what comes before there is anything to clean up.

    Native modules that are being loaded don't all survive the exception that Ctrl-C raises otherwise.
    """
    before = {number: signal.signal(number, _leave_by) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_by(number: int, _frame: object) -> NoReturn:
    leave_at_once(128 + number)


def leave_at_once(code: int) -> NoReturn:
    """Leave without waiting for compute threads: all that is to be kept is on disk already."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
