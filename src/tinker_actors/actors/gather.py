"""A group's messages to its members in one other process: one envelope there, and the answers together back.

A member whose window is full, or which has messages parked, gets an ask of its own instead, so that each member's
messages keep their order and a stalled member bounds the sender's memory.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import envelope
from tinker_actors.actors.call import inherited_trace
from tinker_actors.actors.errors import MailboxFull
from tinker_actors.actors.pending import Pending
from tinker_actors.actors.remote import RemoteTarget
from tinker_actors.errors import ActorError

if TYPE_CHECKING:
    from tinker_actors.actors.collect import Collector
    from tinker_actors.actors.message import Message

Member = tuple[int, RemoteTarget]
"""A member's position in its group, and the way to it."""


class PendingPart(Pending):
    """One member's share that travels alone."""

    __slots__ = ("_collector", "_index")

    def __init__(self, target: RemoteTarget, ident: int, collector: Collector, index: int) -> None:
        super().__init__(target, ident)
        self._collector = collector
        self._index = index

    def resolve(self, value: Any) -> None:
        self.done = True
        self._collector.answer(self._index, value)

    def reject(self, error: BaseException) -> None:
        self.done = True
        self._collector.fail(self._index, error)

    def cancel(self) -> None:
        """The group no longer wants the answer."""
        self.target.cancel(self)


class PendingGather(Pending):
    """The shares of all members in one process.

    Attributes:
        members: in the order in which the envelope names them; each has a place in its own window.
    """

    __slots__ = ("_collector", "_open", "members")

    def __init__(self, members: Sequence[Member], ident: int, size: int, collector: Collector) -> None:
        super().__init__(members[0][1], ident)
        self.members = members
        self.sent = True
        self.size = size
        self._open: dict[int, Member] | None = None  # who has not answered, by place; made when it isn't all or none
        self._collector = collector
        for _, target in members:
            target.take(size)

    def outcomes(
        self,
        places: Sequence[int] | None,
        values: Sequence[Any],
        failed: Sequence[int],
        errors: Sequence[BaseException],
    ) -> bool:
        """Some members' answers; True when all have answered."""
        if places is None and self._open is None and len(values) == len(self.members) and not errors:
            self.done = True
            self.release()
            self._collector.answer_each([position for position, _ in self.members], values)
            return True
        left = self._left()
        for place, value in enumerate(values) if places is None else zip(places, values, strict=True):
            if (position := self._release_one(left, place)) is not None:
                self._collector.answer(position, value)
        for place, error in zip(failed, errors, strict=True):
            if (position := self._release_one(left, place)) is not None:
                self._collector.fail(position, error)
        self.done = not left
        return self.done

    def resolve(self, value: Any) -> None:
        """The envelope never left."""
        self.done = True

    def reject(self, error: BaseException) -> None:
        self.done = True
        for position, _ in self._left().values():
            self._collector.fail(position, copy.copy(error))

    def release(self) -> None:
        """Nobody else will answer."""
        members = self.members if self._open is None else self._open.values()
        self._open = {}
        size = self.size
        for _, target in members:
            target.release(1, size)

    def forget(self) -> None:
        """The members' process is gone, and their windows with it."""
        for _, target in self._left().values():
            target.outstanding -= 1

    def cancel(self) -> None:
        """The group no longer wants the answers."""
        self.target.node.exchange.cancel(self.target.address.node, self.id)

    def _left(self) -> dict[int, Member]:
        if self._open is None:
            self._open = dict(enumerate(self.members))
        return self._open

    def _release_one(self, left: dict[int, Member], place: int) -> int | None:
        """A member has answered: its position, or None if it did before."""
        member = left.pop(place, None)
        if member is None:
            return None
        position, target = member
        target.release(1, self.size)
        return position


def send_gather(
    collector: Collector,
    members: Sequence[Member],
    of: Message,
    *,
    wait: bool,
) -> list[PendingGather | PendingPart]:
    """Ask members that share a process for `of`; what can't be sent at all is the outcome of each."""
    first = members[0][1]
    exchange, index = first.node.exchange, first.address.node
    meta = first.meta(of.chain, of.deadline, of.trace, wait=wait)
    request = [of.method, list(of.args), of.kwargs or None, meta]
    ident = exchange.next_id()
    try:
        exchange.require(index)
        actors = [target.actor for _, target in members]
        data, frames, size = exchange.encode([envelope.GATHER, ident, actors, *request])
    except ActorError as error:
        for position, _ in members:
            collector.fail(position, copy.copy(error))
        return []
    together = [member for member in members if member[1].has_room(size)]
    sent: list[PendingGather | PendingPart] = []
    if len(together) < len(members):
        joined = {position for position, _ in together}
        for position, target in members:
            if position not in joined:
                part = PendingPart(target, exchange.next_id(), collector, position)
                try:
                    target.submit(part, of.method, of.args, of.kwargs, meta, wait=wait)
                except ActorError as error:
                    collector.fail(position, error)
                else:
                    sent.append(part)
        if not together:
            return sent
        actors = [target.actor for _, target in together]
        data, frames, size = exchange.encode([envelope.GATHER, ident, actors, *request])
    pending = PendingGather(together, ident, size, collector)
    exchange.pending[ident] = pending
    exchange.send_request(index, actors, ident, data, frames, system=False)
    sent.append(pending)
    return sent


def tell_all(
    targets: Sequence[RemoteTarget], method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[MailboxFull]:
    """Tell actors that share a process; the refusals of those that have no room."""
    first = targets[0]
    exchange, index = first.node.exchange, first.address.node
    exchange.require(index)
    room = [target for target in targets if target.has_room(0)]
    if room:
        actors = [target.address.id for target in room]
        parts = [envelope.TELL_ALL, actors, method, list(args), kwargs or None, inherited_trace()]
        data, frames, size = exchange.encode(parts)
        for target in room:
            target.take_tell(size)
        exchange.send_request(index, actors, 0, data, frames, system=False)
    kept = set(room)
    return [target.full() for target in targets if target not in kept]
