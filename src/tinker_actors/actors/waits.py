"""Where a suspended handler waits, read off its frames: nothing has to be recorded while asks go their way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinker_actors.actors.asking import asker
from tinker_actors.actors.mailbox import Mailbox, State
from tinker_actors.actors.pulse import awaited

if TYPE_CHECKING:
    from tinker_actors.actors.cell import Cell
    from tinker_actors.actors.message import Message


_AWAY = next(code for code in asker.__code__.co_consts if getattr(code, "co_name", "") == "ask")
_ASKS = (Mailbox.outcome_of.__code__, _AWAY)
"""Where single asks wait: their variables `self` or `target`, `message` or `pending`, and `due` are read."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The one ask without whose answer a handler can't go on.

    Attributes:
        target: whom it asks: a `Cell` of this process, or the way to another.
        ask: the `LocalAsk` or the `PendingAsk`.
        future: what the handler waits for.
        due: `loop.time()` at which the ask ends by its deadline, or None.
    """

    target: Any
    ask: Any
    future: asyncio.Future[Any]
    due: float | None


@dataclass(frozen=True, slots=True)
class Holder:
    """A handler that must end, or go on, before a message can be answered.

    Attributes:
        handler: its coroutine or generator.
        method: what it serves; of a hook, the hook's name.
        is_ahead: the message waits in the mailbox behind it; otherwise it is the message that it serves.
    """

    handler: Any
    method: str
    is_ahead: bool


def blocked_in(handler: Any) -> Blocked | None:
    """The ask that `handler` awaits in its own task; None if it awaits anything else.

    What waits for several asks does so through tasks or a group, and is no such ask.
    """
    while handler is not None:
        code = getattr(handler, "cr_code", None)
        if code in _ASKS:
            names: dict[str, Any] = {} if handler.cr_frame is None else handler.cr_frame.f_locals
            ask: Any = names.get("message", names.get("pending"))
            future = getattr(ask, "future", None)
            if future is None or future.done() or ask.done:
                return None
            return Blocked(names["self"] if "self" in names else names["target"], ask, future, names["due"])
        handler = awaited(handler)
    return None


def holder(cell: Cell) -> Holder | None:
    """What keeps an actor from serving its mailbox."""
    if cell.interrupt is not None:
        return None
    running = cell.running
    if running is not None:
        return None if running.cancelled else Holder(cell.handling, running.method, True)
    if cell.task is None:
        return None
    starts = cell.state is State.STARTING or cell.state is State.RESTARTING
    return Holder(cell.task.get_coro(), "on_start" if starts else "on_stop", True)


def holder_of(cell: Cell, message: Message) -> Holder | None:
    """What an ask of `cell` waits for, if it has not been answered, withdrawn or refused: see `is_behind`."""
    if message.done or message.cancelled or cell.interrupt is not None:
        return None
    task = cell.concurrent.get(message)
    if task is not None:
        return Holder(task.get_coro(), message.method, False)
    if message is cell.running:
        return Holder(cell.handling, message.method, False)
    return holder(cell)


def is_behind(cell: Cell, message: Message) -> bool:
    """Whether `message` waits until the actor's present handler ends. Costs more, the more messages wait.

    A concurrent one does only if one that is not waits ahead of it; else it waits for room, whoever makes it.
    """
    for waiting in cell.queue:
        if not waiting.spec.concurrent:
            return message in cell.queue
        if waiting is message:
            return False
    return False
