"""The receiver's side of a group's messages from another process: a share to each member here, the answers together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinker_actors.actors import envelope
from tinker_actors.actors.errors import CodecError
from tinker_actors.actors.shares import MISSING, deal

if TYPE_CHECKING:
    from tinker_actors.actors.mailbox import Mailbox
    from tinker_actors.actors.message import Message
    from tinker_actors.actors.serving import Serving
    from tinker_actors.actors.shares import Share


class RemoteGather:
    """A group's ask; the answers of one loop turn go back in one envelope."""

    __slots__ = (
        "_errors",
        "_ident",
        "_open",
        "_places",
        "_scheduled",
        "_serving",
        "_values",
        "is_open",
        "left",
        "outcomes",
        "takes_some",
    )

    def __init__(self, serving: Serving, ident: int) -> None:
        self._serving = serving
        self._ident = ident
        self._open: list[tuple[Mailbox, Share]] = []
        self._places: list[int] = []  # each member's position in its group
        self._values: list[tuple[int, Any]] = []
        self._errors: list[tuple[int, BaseException]] = []
        self._scheduled = False
        self.is_open = True
        self.takes_some = False
        self.outcomes: list[Any] = []
        self.left = 0

    def post(self, members: list[tuple[int, int]], of: Message, *, wait: bool) -> None:
        """Give each member its share of the ask `of`; `members` are (position in the group, actor id)."""
        node = self._serving.node
        self.left = len(members)
        self._places = [index for index, _ in members]
        self.outcomes = [MISSING] * len(members)
        here: list[tuple[int, Mailbox]] = []
        for place, (_, actor) in enumerate(members):
            cell = node.cells.get(actor)
            if cell is None:
                self.fail(place, node.refusal(actor))
            else:
                here.append((place, cell))
        self._open = deal(self, here, of, wait=wait)
        self._take()
        if not self._serving.alive:  # closed by one of the handlers
            self.cancel()

    def answer(self, index: int, value: Any) -> None:
        """A member's result."""
        self._values.append((self._places[index], value))
        self._answered()

    def fail(self, index: int, error: BaseException) -> None:
        """A member's error."""
        self._errors.append((self._places[index], error))
        self._answered()

    def look(self) -> None:
        """All members have answered; `post` takes what they left."""

    def _take(self) -> None:
        """Take the results that came while the members were asked."""
        outcomes, self.outcomes = self.outcomes, []
        self._values += [
            (place, value) for place, value in zip(self._places, outcomes, strict=True) if value is not MISSING
        ]
        if self._values or self._errors:
            self._see_off()

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        for mailbox, share in self._open:
            if not share.done:
                mailbox.cancel(share)

    def _answered(self) -> None:
        self.left -= 1
        self._see_off()

    def _see_off(self) -> None:
        if not self.left:
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
