"""The receiver's side of a group's messages from another process: a share to each member here, the answers together."""

from __future__ import annotations

from collections.abc import Sequence
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
        "_failed",
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
        self._places: list[int] = []  # of those whose `_values` are to be sent
        self._values: list[Any] = []
        self._failed: list[int] = []  # of those whose `_errors` are
        self._errors: list[BaseException] = []
        self._scheduled = False
        self.is_open = True
        self.takes_some = False
        self.outcomes: list[Any] = []
        self.left = 0

    def post(self, actors: list[int], of: Message, *, wait: bool) -> None:
        """Give each of the actors its share of the ask `of`."""
        node = self._serving.node
        self.left = len(actors)
        self.outcomes = [MISSING] * len(actors)
        here: list[tuple[int, Mailbox]] = []
        for place, actor in enumerate(actors):
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
        self._places.append(index)
        self._values.append(value)
        self._answered()

    def fail(self, index: int, error: BaseException) -> None:
        """A member's error."""
        self._failed.append(index)
        self._errors.append(error)
        self._answered()

    def look(self) -> None:
        """All members have answered; `post` takes what they left."""

    def _take(self) -> None:
        """Take the results that came while the members were asked."""
        outcomes, self.outcomes = self.outcomes, []
        if not (self.left or self._values or self._errors):
            self._serving.open.pop(self._ident, None)
            self._give(None, outcomes, (), ())
            return
        for place, value in enumerate(outcomes):
            if value is not MISSING:
                self._places.append(place)
                self._values.append(value)
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
        places, self._places = self._places, []
        values, self._values = self._values, []
        failed, self._failed = self._failed, []
        errors, self._errors = self._errors, []
        if values or errors:
            self._give(places, values, failed, errors)

    def _give(
        self, places: Sequence[int] | None, values: Sequence[Any], failed: Sequence[int], errors: Sequence[Any]
    ) -> None:
        """Send outcomes, see `envelope`; those that can't be sent together each go alone."""
        if not self._serving.alive:
            return
        try:
            self._write(places, values, failed, errors)
            return
        except CodecError as error:
            if len(values) + len(errors) == 1:
                self._write((), (), (0,) if places is None else (*places, *failed), (error,))
                return
        for place, value in enumerate(values) if places is None else zip(places, values, strict=True):
            self._give((place,), (value,), (), ())
        for place, error in zip(failed, errors, strict=True):
            self._give((), (), (place,), (error,))

    def _write(self, *outcomes: Sequence[Any] | None) -> None:
        parts = [None if each is None else [*each] for each in outcomes]
        self._serving.node.exchange.send(self._serving.peer, [envelope.GATHERED, self._ident, *parts])
