"""The receiver's side of a group's messages from another process: a share to each member here, the answers together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import envelope
from tinker_actors.actors.errors import CodecError
from tinker_actors.actors.message import Message

if TYPE_CHECKING:
    from tinker_actors.actors.call import Chain
    from tinker_actors.actors.serving import Serving


class GatherPart(Message):
    """One member's share."""

    __slots__ = ("actor", "gather", "index")

    at_once = True

    def __init__(
        self,
        gather: RemoteGather,
        index: int,
        actor: int,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        chain: Chain,
        deadline: float | None,
        trace: str | None,
    ) -> None:
        # The base's assignments again, because this runs once a member.
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.chain = chain
        self.deadline = deadline
        self.trace = trace
        self.done = False
        self.cancelled = False
        self.gather = gather
        self.index = index
        self.actor = actor

    def succeed(self, value: Any) -> None:
        self.done = True
        self.gather.answer(self.index, value)

    def fail(self, error: BaseException) -> None:
        self.done = True
        self.gather.fail(self.index, error)


class RemoteGather:
    """A group's ask; the answers of one loop turn go back in one envelope."""

    __slots__ = ("_errors", "_ident", "_left", "_parts", "_scheduled", "_serving", "_values")

    def __init__(self, serving: Serving, ident: int) -> None:
        self._serving = serving
        self._ident = ident
        self._parts: list[GatherPart] = []
        self._left = 0
        self._values: list[tuple[int, Any]] = []
        self._errors: list[tuple[int, BaseException]] = []
        self._scheduled = False

    def post(
        self,
        members: list[tuple[int, int]],
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        chain: Chain,
        due: float | None,
        trace: str | None,
        *,
        wait: bool,
    ) -> None:
        """Put a share into each member's mailbox; `members` are (position in the group, actor id)."""
        node = self._serving.node
        self._left = len(members)
        for index, actor in members:
            part = GatherPart(self, index, actor, method, args, kwargs, chain, due, trace)
            self._parts.append(part)
            cell = node.cells.get(actor)
            if cell is None:
                part.fail(node.refusal(actor))
            else:
                cell.post(part, wait=wait)

    def answer(self, index: int, value: Any) -> None:
        """A member's result."""
        self._values.append((index, value))
        self._answered()

    def fail(self, index: int, error: BaseException) -> None:
        """A member's error."""
        self._errors.append((index, error))
        self._answered()

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        cells = self._serving.node.cells
        for part in self._parts:
            if not part.done and (cell := cells.get(part.actor)) is not None:
                cell.cancel(part)

    def _answered(self) -> None:
        self._left -= 1
        if not self._left:
            self._serving.open.pop(self._ident, None)
            self._send()
        elif not self._scheduled:
            self._scheduled = True
            self._serving.node.loop.call_soon(self._send)

    def _send(self) -> None:
        self._scheduled = False
        serving = self._serving
        values, self._values = self._values, []
        errors, self._errors = self._errors, []
        if not serving.alive or not (values or errors):
            return
        exchange = serving.node.exchange
        try:
            exchange.send(serving.peer, [envelope.GATHERED, self._ident, values, errors])
            return
        except CodecError as error:
            if len(values) + len(errors) == 1:
                exchange.send(serving.peer, [envelope.GATHERED, self._ident, [], [((values or errors)[0][0], error)]])
                return
        # One of them can't be sent, or all together are too large: each goes alone.
        self._each(values, errors)

    def _each(self, values: list[tuple[int, Any]], errors: list[tuple[int, BaseException]]) -> None:
        for value in values:
            self._values = [value]
            self._send()
        for error in errors:
            self._errors = [error]
            self._send()
