"""What comes in from other nodes: batches, and whom their envelopes are for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import envelope
from tinker_actors.actors.codec import Frame
from tinker_actors.actors.envelope import ASK, BULK, REPLY
from tinker_actors.actors.errors import CodecError
from tinker_actors.actors.late_data import LateData

if TYPE_CHECKING:
    from tinker_actors.actors.exchange import Exchange
    from tinker_actors.actors.peer import Peer


class Intake:
    """Reads what an exchange's sockets receive."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._late = LateData(exchange.loop, exchange.known, self.receive)

    def close(self) -> None:
        """Forget what could not be read yet."""
        self._late.held.clear()

    def receive(self, identity: bytes, data: bytes, frames: Sequence[Frame], is_found: bool = False) -> None:
        """Read a batch; `is_found` if its frames are what their descriptors name, and whole."""
        exchange = self._exchange
        is_large = is_found or bool(frames) or data.startswith(envelope.LED)
        if not is_found:
            if self._late.held and self._late.takes(identity, data, frames):
                return
            if is_large:
                data, frames = exchange.find_frames(identity, data, frames)
                if not frames or not self._late.is_whole(identity, data, frames):
                    exchange.bulk.give_back()
                    return
        exchange.receiving = True
        try:
            self._read(identity, data, frames)
        finally:
            exchange.receiving = False
            if is_large:  # what was lent and is not kept is given back with the answer
                del frames
                exchange.bulk.give_back()
            if exchange.dirty:
                exchange.flush()  # what is answered by now goes out while the next batch is read

    def _read(self, identity: bytes, data: bytes, frames: Sequence[Frame]) -> None:
        exchange = self._exchange
        codec, pending, known = exchange.node.codec, exchange.pending, exchange.known
        whole = True
        try:
            batch: list[Any] = envelope.split(codec, data, frames)
        except CodecError:
            whole = False
            try:
                batch = envelope.salvage(codec, data, frames)
            except CodecError as error:
                exchange.bad(identity, error)
                return
        exchange.last_inbound = len(batch)
        peer = known.get(identity)
        for parts in batch:
            try:
                # The kinds that make up nearly all traffic go the short way.
                if whole and peer is not None:
                    kind = parts[0]
                    if kind == REPLY and len(parts) == 3:
                        if (waiting := pending.pop(parts[1], None)) is not None:
                            waiting.settle(parts[2])
                        continue
                    if kind == ASK and len(parts) == 7:
                        peer.serving.answer(parts)
                        continue
                    if kind == BULK and len(parts) == 3 and peer.lane is not None:
                        exchange.last_inbound -= 1  # nobody answers it
                        peer.lane.control(parts[1], parts[2])
                        continue
                self._dispatch(identity, parts)
                peer = known.get(identity)
            except Exception as error:  # the boundary around bytes from elsewhere: a bad message is dropped
                exchange.bad(identity, error)

    def _dispatch(self, identity: bytes, parts: Any) -> None:
        exchange = self._exchange
        error: CodecError | None = None
        if isinstance(parts, envelope.Unreadable):
            parts, error = parts.head, parts.error
        if not envelope.is_well_formed(parts):
            raise error or CodecError("a malformed envelope")
        peer = exchange.known.get(identity)
        if peer is None:
            self._hello(identity, parts)
            return
        kind = parts[0]
        if error is not None:
            self._unreadable(peer, parts, error)
            return
        if kind == REPLY or kind == envelope.END:
            exchange.settle(parts[1], parts[2] if kind == REPLY else None, None)
        elif kind == ASK or kind == envelope.STREAM:
            peer.serving.ask(parts)
        elif kind == BULK:  # from a peer that was not known until now, or without a lane
            exchange.last_inbound -= 1
            if peer.lane is not None:
                peer.lane.control(parts[1], parts[2])
        elif kind == envelope.ERROR:
            exchange.settle(parts[1], None, parts[2])
        elif kind == envelope.TELL:
            peer.serving.tell(parts)
        elif kind == envelope.ITEM:
            pending = exchange.pending.get(parts[1])
            if pending is not None:
                pending.item(parts[2])
        elif kind == envelope.CANCEL:
            peer.serving.cancel(parts[1])
        elif kind == envelope.CREDIT:
            peer.serving.credit(parts[1], parts[2])
        elif kind == envelope.ACK:
            for actor, count in parts[1]:
                target = exchange.node.known_target(actor)
                if target is not None:
                    target.confirm(count)
        elif kind == envelope.GATHER:
            peer.serving.gather(parts)
        elif kind == envelope.GATHERED:
            pending = exchange.pending.get(parts[1])
            if pending is not None and pending.outcomes(*parts[2:]):
                del exchange.pending[parts[1]]
        elif kind == envelope.TELL_ALL:
            peer.serving.tell_all(parts)
        elif kind == envelope.WAITS:
            exchange.node.cycles.arrived(peer, parts[1], parts[2])
        elif kind == envelope.HELLO:
            self._hello(identity, parts)
        elif peer.index == 0:
            self._from_directory(parts)

    def _unreadable(self, peer: Peer, parts: list[Any], error: CodecError) -> None:
        """An envelope whose head can be read, but not its body: whoever waits for it hears why."""
        exchange = self._exchange
        kind, ident = parts[0], parts[1]
        if kind in (envelope.ASK, envelope.STREAM, envelope.GATHER):
            exchange.send(peer.index, [envelope.ERROR, ident, error])
        elif kind in (envelope.REPLY, envelope.ERROR, envelope.GATHERED):
            exchange.settle(ident, None, error)
        elif kind == envelope.ITEM:
            pending = exchange.pending.get(ident)
            if pending is not None:
                pending.target.cancel(pending)
                pending.reject(error)
        elif kind == envelope.TELL:
            peer.serving.ack(ident)
        elif kind == envelope.TELL_ALL:
            for actor in ident:
                peer.serving.ack(actor)
        exchange.bad(peer.identity, error)

    def _hello(self, identity: bytes, parts: list[Any]) -> None:
        exchange = self._exchange
        if parts[0] != envelope.HELLO and exchange.has_ended(identity):
            return
        if exchange.network is not None and exchange.network.is_from_there(identity):
            exchange.network.hello(identity, parts)
            return
        token, index, incarnation, url, address = parts[1:6] if parts[0] == envelope.HELLO else ("", -1, -1, "", None)
        peer = exchange.by_index.get(index)
        name = b"%d:%d>%d:%d" % (index, incarnation, exchange.node.index, exchange.node.incarnation)
        if token != exchange.node.mesh or peer is None or identity != name:
            raise CodecError(f"a message from {identity!r}, which has not said hello")
        if incarnation < peer.incarnation or peer.dead is not None:
            return
        if exchange.greeted is not None and not exchange.greeted(index, incarnation, url, address):
            return
        exchange.connect(index, incarnation, url)
        exchange.known[identity] = peer

    def _from_directory(self, parts: list[Any]) -> None:
        exchange = self._exchange
        if parts[0] == envelope.PEER:
            _, index, incarnation, url, key, error, final = parts
            if url is not None:
                exchange.connect(index, incarnation, url, key)
                exchange.open_peer(index)
            elif index in exchange.by_index:
                exchange.peer_down(index, incarnation, error, final=final)
        elif parts[0] == envelope.NAME:
            _, name, ref = parts
            if ref is None:
                exchange.node.names.pop(name, None)
            else:
                exchange.node.names[name] = ref
