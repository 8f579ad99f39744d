"""What this process waits for from other nodes: one object for each message of ours, until its last answer."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import envelope
from tinker_actors.actors.stream import Stream

if TYPE_CHECKING:
    from tinker_actors.actors.deadlines import Bucket, CoarseTimer
    from tinker_actors.actors.remote import RemoteTarget


class Pending:
    """One message of ours at another node, until its last answer. `id` is 0 for tells.

    Attributes:
        due: its deadline, if that is so far away that `FarDeadlines` watches over it.
    """

    __slots__ = ("done", "due", "id", "sent", "size", "target")

    def __init__(self, target: RemoteTarget, ident: int) -> None:
        self.target = target
        self.id = ident
        self.sent = False
        self.done = False
        self.due: float | None = None
        self.size = 0

    def resolve(self, value: Any) -> None:
        """The reply, or the end of a stream."""

    def reject(self, error: BaseException) -> None:
        """An error in its place."""

    def item(self, value: Any) -> None:
        """One item of a stream."""

    def outcomes(
        self,
        places: Sequence[int] | None,
        values: Sequence[Any],
        failed: Sequence[int],
        errors: Sequence[BaseException],
    ) -> bool:
        """Answers of some members of a group, see `envelope`; True once all have answered."""
        return False

    def settle(self, value: Any) -> None:
        """The reply; leaves the window."""
        self.resolve(value)
        self.release()

    def watch(self, timer: CoarseTimer) -> None:
        """The deadline is near by now."""

    def release(self) -> None:
        """Leave the window."""
        self.target.release(1, self.size)

    def forget(self) -> None:
        """The target's process is gone; what it held was no tell."""
        self.target.outstanding -= 1


class PendingAsk(Pending):
    """An ask that waits for its reply.

    Attributes:
        future: what the sender awaits.
        bucket: where the timer watches over `future`.
        what: the method, for the error that says that a deadline passed which was far away.
    """

    __slots__ = ("bucket", "future", "what")

    future: asyncio.Future[Any]
    bucket: Bucket | None
    what: str

    def resolve(self, value: Any) -> None:
        self.done = True
        if not self.future.done():
            self.future.set_result(value)

    def settle(self, value: Any) -> None:
        # Both at once, because this runs once an ask.
        self.done = True
        if not self.future.done():
            self.future.set_result(value)
        target = self.target
        outstanding = target.outstanding - 1
        if outstanding < 0 or target.bytes < self.size or target.backlog:
            target.release(1, self.size)
            return
        target.outstanding = outstanding
        target.bytes -= self.size
        if not outstanding:
            target.node.exchange.busy.discard(target)

    def watch(self, timer: CoarseTimer) -> None:
        if self.due is not None:
            what = self.target.address.name, self.what
            self.bucket, self.due = timer.add(self.future, self.due, what), None

    def reject(self, error: BaseException) -> None:
        self.done = True
        if not self.future.done():
            self.future.set_exception(error)


class PendingTell(Pending):
    """A tell that waits for room in the window; `room` is awaited by its sender."""

    __slots__ = ("room",)

    room: asyncio.Future[None]

    def reject(self, error: BaseException) -> None:
        self.done = True
        if not self.room.done():
            self.room.set_exception(error)


class PendingStream(Pending):
    """A stream; also the reader's way back to its producer."""

    __slots__ = ("reader",)

    def __init__(self, target: RemoteTarget, ident: int, reader: Stream) -> None:
        super().__init__(target, ident)
        self.reader = weakref.ref(reader)

    def resolve(self, value: Any) -> None:
        self._finish(None)

    def reject(self, error: BaseException) -> None:
        self._finish(error)

    def item(self, value: Any) -> None:
        reader = self.reader()
        if reader is not None:
            reader.push(value)

    def grant(self, count: int) -> None:
        """The reader has room for more."""
        if not self.done:
            self.target.node.exchange.send(self.target.address.node, [envelope.CREDIT, self.id, count])

    def abandon(self) -> None:
        """The reader is gone."""
        if not self.done:
            self.target.cancel(self)

    def _finish(self, error: BaseException | None) -> None:
        self.done = True
        reader = self.reader()
        if reader is not None:
            reader.finish(error)
