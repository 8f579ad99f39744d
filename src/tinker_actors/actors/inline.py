"""Serving an idle actor's message at once, in the turn of whoever sent it, until the handler first waits.

Two switches between tasks cost more than everything else about a message within a process, and most handlers never
wait. So a handler's coroutine is started where its message is posted: in the actor's own context, and with the actor's
task as the current one, so that the handler can't tell. If it waits, the actor's task takes it over from there.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from tinker_actors.actors.mailbox import Mailbox
    from tinker_actors.actors.message import LocalAsk, Message

BUDGET = 64  # asks in a row that one task may have served at once before the loop's other work gets its turn
DEPTH = 16  # handlers started from within each other


# What asyncio's documentation ("Extending", "Task lifetime support") offers to those who run coroutines themselves.
_asyncio: Any = asyncio
enter_task: Callable[[asyncio.AbstractEventLoop, asyncio.Task[Any]], None] = _asyncio._enter_task
leave_task: Callable[[asyncio.AbstractEventLoop, asyncio.Task[Any]], None] = _asyncio._leave_task
tasks: dict[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
"""The present task of each loop, which Python 3.11 keeps in a dict: to write there takes a fifth of the above."""
current_task: Callable[[asyncio.AbstractEventLoop], asyncio.Task[Any] | None] = _asyncio.current_task
if sys.version_info < (3, 12):
    tasks = _asyncio.tasks._current_tasks
    # `asyncio.current_task` of this version is itself written in Python, and would be a twentieth of an ask.
    current_task = _asyncio.tasks._current_tasks.get


class Turn:
    """What bounds the messages that one process serves at once.

    Attributes:
        depth: handlers that are being started now, each from within the one before.
        left: asks that `owner`, and the handlers that it started, may still have served at once.
        owner: the task that asked last.
        spare: an ask that was answered in its sender's turn, for the next to use again: a new one costs more.
    """

    __slots__ = ("depth", "left", "owner", "spare")

    def __init__(self) -> None:
        self.depth = 0
        self.left = BUDGET
        self.owner: asyncio.Task[Any] | None = None
        self.spare: LocalAsk | None = None


IDLE: Any = object()
"""What a handling generator gives when it has served a message and takes the next."""


def serve_at_once(mailbox: Mailbox, message: Message) -> None:
    """Start serving a one-at-a-time message of an idle actor now."""
    host = mailbox.host
    turn, loop = host.turn, host.loop
    task: Any = mailbox.task
    sender = current_task(loop)
    if sender is not turn.owner and not turn.depth:
        turn.owner = sender
        turn.left = BUDGET
    turn.depth += 1
    if tasks is not None:
        tasks[loop] = task
    else:
        if sender is not None:
            leave_task(loop, sender)
        enter_task(loop, task)
    try:
        waits_for = mailbox.serve_one(message)
    except BaseException as error:  # only what must end the process comes through
        break_off(mailbox, error)
        raise
    finally:
        if tasks is not None and sender is not None:
            tasks[loop] = sender
        else:
            leave_task(loop, task)
            if sender is not None:
                enter_task(loop, sender)
        turn.depth -= 1
    if waits_for is not IDLE or mailbox.broken is not None or mailbox.interrupt is not None:
        hand_over(mailbox, waits_for)


def break_off(mailbox: Mailbox, error: BaseException) -> None:
    """A handler that was begun at once raised what ends the process."""
    mailbox.handling = None
    mailbox.broken = error
    mailbox.wake()


def hand_over(mailbox: Mailbox, waits_for: Any) -> None:
    """Let the actor's task take over the handler that waits for `waits_for`, or the actor's end."""
    if waits_for is not IDLE:
        mailbox.waits_for = put_aside(waits_for)
    mailbox.wake()


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
