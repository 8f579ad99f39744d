"""Serving an idle actor's message at once, in the turn of whoever sent it, until the handler first waits.

Two switches between tasks cost more than everything else about a message within a process, and most handlers never
wait. So a handler's coroutine is started where its message is posted: in the actor's own context, and with the actor's
task as the current one, so that the handler can't tell. If it waits, the actor's task takes it over from there.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Generator
from typing import Any, cast

BUDGET = 16  # asks in a row that one task may have served at once before the loop's other work gets its turn
DEPTH = 16  # handlers started from within each other


# What asyncio's documentation ("Extending", "Task lifetime support") offers to those who run coroutines themselves.
_asyncio: Any = asyncio
enter_task: Callable[[asyncio.AbstractEventLoop, asyncio.Task[Any]], None] = _asyncio._enter_task
leave_task: Callable[[asyncio.AbstractEventLoop, asyncio.Task[Any]], None] = _asyncio._leave_task


class Turn:
    """What bounds the messages that one process serves at once.

    Attributes:
        depth: handlers that are being started now, each from within the one before.
        left: asks that `owner`, and the handlers that it started, may still have served at once.
        owner: the task that asked last.
    """

    __slots__ = ("depth", "left", "owner")

    def __init__(self) -> None:
        self.depth = 0
        self.left = BUDGET
        self.owner: asyncio.Task[Any] | None = None


IDLE: Any = object()
"""What a handling generator gives when it has served a message and takes the next."""


def put_aside(waits_for: Any) -> Any:
    """Keep what a handler waits for until `resume`. Others may begin to wait for the same future meanwhile.

    A future that is being yielded by an `await` bears a mark until a task has taken it, and can't be awaited by
    another; see `asyncio.futures.isfuture` for who has that mark.
    """
    if asyncio.isfuture(waits_for):
        cast(Any, waits_for)._asyncio_future_blocking = False
    return waits_for


@types.coroutine
def resume(handling: Generator[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, None]:
    """Await the rest of a message that `handling` serves, whose handler waits for `waits_for`."""
    if asyncio.isfuture(waits_for):
        cast(Any, waits_for)._asyncio_future_blocking = True
    while waits_for is not IDLE:
        try:
            sent = yield waits_for
        except GeneratorExit:
            handling.close()
            raise
        except BaseException as error:  # it is the handler that decides what becomes of what is thrown into it
            waits_for = handling.throw(error)
        else:
            waits_for = handling.send(sent)


@types.coroutine
def give_way() -> Generator[None, None, None]:
    """Let the loop's other work have its turn."""
    yield
