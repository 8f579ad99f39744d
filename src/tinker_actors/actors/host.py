"""What the mailboxes of one process need of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Protocol

from tinker_actors.actors.deadlines import CoarseTimer
from tinker_actors.actors.inline import Turn

if TYPE_CHECKING:
    from tinker_actors.actors.cell import Cell
    from tinker_actors.actors.message import Message


class Host(Protocol):
    """The node as its actors' mailboxes see it. `clock` is the loop's `time`."""

    loop: asyncio.AbstractEventLoop
    clock: Callable[[], float]
    timer: CoarseTimer
    context: Context
    turn: Turn

    def dead_letter(self, message: Message, error: BaseException, *, begun: bool = False) -> None:
        """A tell was not served, or was and raised (`begun`)."""
        ...

    def idle(self) -> None:
        """An actor has nothing to do: what it wrote can go out."""
        ...

    def restarted(self, cell: Cell, incarnation: int, reason: BaseException | None) -> None:
        """A new incarnation serves the cell."""
        ...

    async def failed(self, cell: Cell, incarnation: int, why: str) -> None:
        """An incarnation failed that is to be replaced, its siblings too; returns once they know."""
        ...

    def ended(self, cell: Cell, failure: BaseException | None) -> None:
        """The cell takes no more messages, ever."""
        ...

    async def stop_children(self, parent: int) -> None:
        """End every actor that `parent` spawned."""
        ...
