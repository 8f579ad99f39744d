"""How asks of another process are served whose actors are idle: what runs once an ask, at least cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinker_actors.actors.control import SYSTEM_IDS
from tinker_actors.actors.inline import serve_at_once

if TYPE_CHECKING:
    from tinker_actors.actors.serving import RemoteAsk, Serving

_NOTHING: dict[str, Any] = {}


def answerer(serving: Serving, kind: type[RemoteAsk]) -> Callable[[list[Any]], None]:
    """What serves an ASK envelope at once, as `serving.ask` would; that gets those that are not as simple as most."""
    node = serving.node
    clock, cell_of, unanswered = node.clock, node.cells.get, serving.open
    new = kind.__new__
    spare: RemoteAsk | None = None

    def answer(parts: list[Any]) -> None:
        nonlocal spare
        _, ident, actor, method, args, kwargs, left = parts
        cell = cell_of(actor)
        if (
            cell is None
            or cell.waiter is None
            or cell.running is not None
            or cell.queue
            or (left is not None and (left.__class__ is not float or left <= 0))
            or kwargs is not None
            or actor < SYSTEM_IDS
            or method not in cell.plain
            or (serving.tombstones and ident in serving.tombstones)
        ):
            serving.ask(parts)
            return
        message = spare
        if message is None:
            message = new(kind)
            message.kwargs = _NOTHING
            message.chain = ()
            message.trace = None
            message.cancelled = False
            message.serving = serving
        else:
            spare = None
        message.done = False
        message.method = method
        message.args = tuple(args)
        message.deadline = None if left is None else clock() + left
        message.ident = ident
        message.actor = actor
        serve_at_once(cell, message)
        if message.done:
            message.args = ()  # while it waits for the next it keeps nothing alive
            spare = message
        else:
            unanswered[ident] = message
            if not serving.alive:  # closed by the handler, which has begun
                cell.cancel(message)

    return answer
