"""The receiver's side of messages from another process: what one peer asked of actors here."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import envelope, traceparent
from tinker_actors.actors.answering import answerer
from tinker_actors.actors.buffers import PLAIN
from tinker_actors.actors.envelope import REPLY
from tinker_actors.actors.errors import CodecError
from tinker_actors.actors.gathering import RemoteGather
from tinker_actors.actors.message import Message, StreamMessage

if TYPE_CHECKING:
    from tinker_actors.actors.call import Chain
    from tinker_actors.actors.node import Node
    from tinker_actors.actors.peer import Peer

_new = object.__new__
_NOTHING: Mapping[str, Any] = {}
TOMBSTONES = 1024  # cancellations remembered for asks that have not come yet


class Serving:
    """The messages of one incarnation of a peer that actors here have not answered yet.

    Attributes:
        alive: the peer's incarnation is.
        open: what has not been answered, by id.
        tombstones: cancellations of asks that have not come.
        answer: serves an ASK envelope, see `answering`.
    """

    def __init__(self, node: Node, peer: Peer) -> None:
        self.node = node
        self.peer = peer.index
        self.way = peer
        self.write = node.codec.write
        self.alive = True
        self.open: dict[int, RemoteAsk | RemoteStream | RemoteGather] = {}
        self.tombstones: OrderedDict[int, None] = OrderedDict()
        self._acks: dict[int, int] = {}
        self.answer = answerer(self, RemoteAsk)

    def ask(self, parts: list[Any]) -> None:
        """An ASK or STREAM envelope."""
        meta = parts[6]
        chain: Chain = ()
        due = trace = None
        wait = True
        if type(meta) is float:
            due = self.node.loop.time() + meta
        elif meta is not None:
            left, steps, nowait, trace = meta
            if trace is not None:
                trace = _checked(trace)
            if left is not None:
                due = self.node.loop.time() + left
            chain = tuple([(int(step), str(label)) for step, label in steps])
            wait = not nowait
        if len(parts) == 7:
            message = _new(RemoteAsk)  # its constructor would cost twice as much, once an ask
            _, ident, actor, message.method, args, kwargs, _ = parts
            message.args = tuple(args)
            message.kwargs = kwargs or _NOTHING
            message.chain = chain
            message.deadline = due
            message.trace = trace
            message.done = message.cancelled = False
            message.serving = self
            message.ident = ident
            message.actor = actor
        else:
            message = RemoteStream(self, parts, chain, due, trace)
            ident, actor = message.ident, message.actor
        if self.tombstones and self.tombstones.pop(ident, 0) is None:
            message.fail(asyncio.CancelledError())
            return
        cell = self.node.cells.get(actor)
        if cell is None:
            message.fail(self.node.refusal(actor))
            return
        cell.post(message, wait=wait)
        if not message.done:
            self.open[ident] = message
            if not self.alive:  # closed by the handler, which has begun
                self._cancel(message)

    def gather(self, parts: list[Any]) -> None:
        """A GATHER envelope."""
        _, ident, listed, method, args, kwargs, meta = parts
        left, steps, nowait, trace = meta or (None, (), 0, None)
        if trace is not None:
            trace = _checked(trace)
        due = None if left is None else self.node.loop.time() + left
        chain: Chain = tuple((int(step), str(label)) for step, label in steps)
        actors = [int(actor) for actor in listed]
        if not actors:
            raise CodecError("a group's ask without members")
        message = Message(method, tuple(args), kwargs or {}, chain, due, trace)
        gather = self.open[ident] = RemoteGather(self, ident)
        gather.post(actors, message, wait=not nowait)
        if self.tombstones and self.tombstones.pop(ident, 0) is None:
            gather.cancel()

    def tell_all(self, parts: list[Any]) -> None:
        """A TELL_ALL envelope."""
        _, actors, *rest = parts
        for actor in actors:
            self.tell([envelope.TELL, actor, *rest])

    def tell(self, parts: list[Any]) -> None:
        """A TELL envelope."""
        _, actor, method, args, kwargs, trace = parts
        if trace is not None:
            trace = _checked(trace)
        message = RemoteTell(self, actor, method, tuple(args), kwargs or {}, trace)
        cell = self.node.cells.get(actor)
        if cell is None:
            message.fail(self.node.refusal(actor))
        else:
            cell.post(message)

    def cancel(self, ident: int) -> None:
        """The asker gave up; a cancel that overtook its ask waits for it as a tombstone."""
        message = self.open.get(ident)
        if message is None:
            self.tombstones[ident] = None
            if len(self.tombstones) > TOMBSTONES:
                self.tombstones.popitem(last=False)
            return
        self._cancel(message)

    def credit(self, ident: int, count: int) -> None:
        """The reader of a stream has room for more."""
        message = self.open.get(ident)
        if isinstance(message, RemoteStream):
            message.grant(count)

    def reply(self, ident: int, parts: list[Any]) -> None:
        """The last answer to an ask or a stream."""
        self.open.pop(ident, None)
        if self.alive:
            self.node.exchange.answer(self.peer, ident, parts)

    def item(self, ident: int, value: Any) -> None:
        """One item of a stream.

        Raises:
            CodecError: the item can't be sent; the stream's producer fails with it.
        """
        if self.alive:
            self.node.exchange.send(self.peer, [envelope.ITEM, ident, value])

    def ack(self, actor: int) -> None:
        """A tell was served or dropped; acknowledged with all others of this loop turn."""
        if not self._acks:
            self.node.loop.call_soon(self._send_acks)
        self._acks[actor] = self._acks.get(actor, 0) + 1

    def close(self) -> None:
        """The peer is gone: nobody waits for what it asked."""
        self.alive = False
        for message in list(self.open.values()):
            self._cancel(message)

    def _cancel(self, message: RemoteAsk | RemoteStream | RemoteGather) -> None:
        if isinstance(message, RemoteGather):
            message.cancel()
            return
        cell = self.node.cells.get(message.actor)
        if cell is not None:
            cell.cancel(message)

    def _send_acks(self) -> None:
        acks, self._acks = self._acks, {}
        if self.alive:
            self.node.exchange.send(self.peer, [envelope.ACK, [*acks.items()]])


def _checked(trace: Any) -> str:
    if not traceparent.is_header(trace):
        raise CodecError("a trace context that is no traceparent")
    return trace


class RemoteAsk(Message):
    """An ask from another process."""

    __slots__ = ("actor", "ident", "serving")

    at_once = True

    serving: Serving
    ident: int
    actor: int

    def succeed(self, value: Any) -> None:
        self.done = True
        serving = self.serving
        if serving.open:
            serving.open.pop(self.ident, None)
        if not serving.alive:
            return
        exchange = serving.node.exchange
        if value.__class__ in PLAIN:  # as `answer` would, without its other questions
            link, lane = serving.way.link, serving.way.lane
            if link is not None and (lane is None or not lane.waiting):
                try:
                    data = serving.write((REPLY, self.ident, value))
                except Exception:  # `answer` says what is wrong with it, or finds another way
                    data = b""
                if data and len(data) <= exchange.max_message:
                    link.put(data)
                    return
        exchange.answer(serving.peer, self.ident, [REPLY, self.ident, value])

    def fail(self, error: BaseException) -> None:
        self.done = True
        self.serving.reply(self.ident, [envelope.ERROR, self.ident, error])


class RemoteStream(StreamMessage):
    """A stream read in another process."""

    __slots__ = ("actor", "ident", "serving")

    def __init__(
        self,
        serving: Serving,
        parts: list[Any],
        chain: Chain,
        deadline: float | None,
        trace: str | None,
    ) -> None:
        _, self.ident, self.actor, method, args, kwargs, _, credits = parts
        super().__init__(method, tuple(args), kwargs or {}, chain, deadline, trace)
        self.serving = serving
        self.credits = int(credits)

    def put(self, item: Any) -> None:
        self.serving.item(self.ident, item)

    def succeed(self, value: Any) -> None:
        self.done = True
        self.serving.reply(self.ident, [envelope.END, self.ident])

    def fail(self, error: BaseException) -> None:
        self.done = True
        self.serving.reply(self.ident, [envelope.ERROR, self.ident, error])


class RemoteTell(Message):
    """A tell from another process; its end, however it ended, gives its place in the sender's window back."""

    __slots__ = ("actor", "serving")

    is_tell = True
    at_once = True

    def __init__(
        self,
        serving: Serving,
        actor: int,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        trace: str | None,
    ) -> None:
        super().__init__(method, args, kwargs, (), None, trace)
        self.serving = serving
        self.actor = actor

    def succeed(self, value: Any) -> None:
        self.done = True
        self.serving.ack(self.actor)

    def fail(self, error: BaseException) -> None:
        self.done = True
        self.serving.node.dead_letter(self, error)
        self.serving.ack(self.actor)

    def raised(self, error: BaseException) -> None:
        self.done = True
        self.serving.node.dead_letter(self, error, begun=True)
        self.serving.ack(self.actor)
