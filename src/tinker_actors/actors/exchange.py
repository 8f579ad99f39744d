"""A node's traffic with the others: one link each way to every peer, and what waits for their answers."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import envelope
from tinker_actors.actors.asking import asker
from tinker_actors.actors.bulk import Bulk
from tinker_actors.actors.chunks import SUFFIX
from tinker_actors.actors.codec import Frame
from tinker_actors.actors.deadlines import FarDeadlines
from tinker_actors.actors.envelope import ASK, REPLY
from tinker_actors.actors.errors import CodecError, NodeDiedError, UnroutableError
from tinker_actors.actors.lookout import Lookout
from tinker_actors.actors.peer import Peer, PeerTable
from tinker_actors.actors.serving import Serving

if TYPE_CHECKING:
    import zmq

    from tinker_actors.actors.node import Node
    from tinker_actors.actors.pending import Pending
    from tinker_actors.actors.remote import RemoteTarget


class Exchange(PeerTable):
    """See the module.

    Attributes:
        pending: our asks and streams that other nodes have not answered, by id.
        far: watches over those whose deadline is far away.
        busy: targets with anything outstanding or parked.
        ask: sends an ask and awaits its outcome, see `asking.asker`.
        lookout: looks for the answer to an ask that is alone.
        last_inbound: envelopes in the batch that came last.
        greeted: decides on an unknown node's hello (index, incarnation, url, tcp address); None accepts any with the
            mesh's id.
    """

    def __init__(self, node: Node, *, max_message: int, shared_memory: int, busy_poll: float | None) -> None:
        super().__init__(node, Bulk(node.loop, shared_memory, max_message))
        self.loop = node.loop
        self.max_message = max_message
        self.pending: dict[int, Pending] = {}
        self.far = FarDeadlines(node.loop, node.timer, self.pending)
        self.busy: set[RemoteTarget] = set()
        self.greeted: Callable[[int, int, str, str | None], bool] | None = None
        self.next_id = itertools.count(1).__next__
        self.last_inbound = 0
        self.lookout = Lookout(self.loop, busy_poll, self.pending)
        self.ask = asker(self)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def listen(self, url: str) -> None:
        """Bind the inbound socket."""
        from tinker_actors.actors.link import Inbound

        self.url = url
        self.lookout.inbounds.append(Inbound(self.context, self.loop, url, self.max_message, self.receive))

    @property
    def context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """The node's own ZeroMQ context."""
        import zmq

        if self._context is None:
            self._context = zmq.Context()
        return self._context

    def close(self, linger: int = 0) -> None:
        """Close every socket and fail everything that still waits; what was sent may leave for `linger` ms."""
        self.closed = True
        error = UnroutableError("the mesh is closed")
        for pending in list(self.pending.values()):
            pending.reject(copy.copy(error))
        self.pending.clear()
        self.far.close()
        for target in list(self.busy):
            target.reset(error)
        self.busy.clear()
        self.bulk.close()
        for peer in self.by_index.values():
            peer.is_open = False
            peer.serving.alive = False
            if peer.link is not None:
                peer.link.close(linger)
            if peer.wire is not None:
                peer.wire.close(linger)
        if self.network is not None:
            self.network.close()
        for inbound in self.lookout.inbounds:
            inbound.close()
        if self._context is not None:
            self._context.destroy()

    def idle(self) -> None:
        """An actor has nothing to do: what it wrote goes out, unless more messages of the same turn follow."""
        if self._dirty and self.last_inbound <= 1:
            self.flush()

    # Sending

    def encode(self, parts: list[Any]) -> tuple[bytes, list[Frame], int]:
        """An envelope as bytes and frames, and its size in bytes; CodecError if it can't be sent or is too large."""
        frames: list[Frame] = []
        data = self.node.codec.encode(parts, frames, look=envelope.may_hold_buffers(parts))
        size = len(data) + sum(frame.nbytes for frame in frames) if frames else len(data)
        if size > self.max_message:
            raise CodecError(f"a message of {size} bytes exceeds this mesh's limit of {self.max_message} bytes")
        return data, frames, size

    def send_request(
        self, index: int, actors: Sequence[int], ident: int, data: bytes, frames: Sequence[Frame], *, system: bool
    ) -> None:
        """Send a request (a tell has the id 0); it waits in the backlog while the peer's actors are not there yet."""
        peer = self.by_index[index]
        link = peer.link
        if link is None or not (peer.is_open or system):
            peer.backlog[ident or -self.next_id()] = (actors, data, frames)
            return
        now = ident > 0 and self.last_inbound <= 1 and len(self.pending) <= 1
        lane = peer.lane
        if lane is not None and (frames or lane.waiting):
            lane.put(data, frames, actors, now=now)
        else:
            link.put(data, frames, now=now)

    def cancel(self, index: int, ident: int) -> None:
        """Cancel a request; one that has not left yet never does."""
        peer = self.by_index[index]
        if peer.backlog.pop(ident, None) is not None:
            self._settle(ident, None, None)
        else:
            self.send(index, [envelope.CANCEL, ident])

    def send(self, index: int, parts: list[Any]) -> None:
        """Send a control message or an item to the peer's present incarnation, if there is one."""
        peer = self.by_index[index]
        link = peer.link
        if link is None:
            return
        data, frames, _ = self.encode(parts)
        lane = peer.lane
        if lane is not None and (frames or (lane.waiting and parts[0] in envelope.ANSWERS)):
            lane.put(data, frames, (-parts[1],))
        else:
            link.put(data, frames)

    def answer(self, index: int, ident: int, parts: list[Any]) -> None:
        """Send the last answer to a request; one that can't be encoded becomes an error that says so."""
        try:
            self.send(index, parts)
        except CodecError as error:
            self.send(index, [envelope.ERROR, ident, error])

    # Peers

    def connect(self, index: int, incarnation: int, url: str, key: str | None = None) -> None:
        """Link to a peer's incarnation; requests still wait until `open_peer`. `key` is its public key."""
        from tinker_actors.actors.link import Outbound

        peer = self.add_peer(index)
        if self.network is not None and url.startswith("tcp:"):
            self.network.connect(peer, incarnation, url, key)
            return
        if peer.link is not None and peer.incarnation == incarnation:
            return
        if peer.link is not None:
            self.peer_down(index, peer.incarnation, NodeDiedError(f"node {index} was replaced"))
        peer.incarnation = incarnation
        peer.identity = self.identity_from(peer)
        peer.serving = Serving(self.node, peer)
        name = self.identity_to(peer)
        peer.link = Outbound(self.context, self.loop, url, name, self.schedule)
        peer.link.put(self.hello(1, 0))
        args = (self.context, self.loop, url, name + SUFFIX, self.schedule)
        self.open_lane(peer, peer.link, lambda: Outbound(*args), same_host=True)

    def open_peer(self, index: int) -> None:
        """Let requests to the peer through, as soon as there is a link."""
        peer = self.by_index[index]
        peer.is_announced = True
        if peer.link is None and peer.wire is not None:
            return
        peer.is_open = True
        backlog, peer.backlog = peer.backlog, {}
        for actors, data, frames in backlog.values():
            if peer.lane is not None:
                peer.lane.put(data, frames, actors)

    def peer_down(self, index: int, incarnation: int, error: Exception, *, final: bool = False) -> None:
        """A peer's incarnation ended: fail what waits for it. `final` if there will be no other."""
        peer = self.by_index[index]
        if incarnation < peer.incarnation:
            return
        peer.incarnation = incarnation
        peer.is_announced = False
        peer.cut = None
        if final:
            peer.dead = error
        link, wire, peer.wire = peer.link, peer.wire, None
        if link is not None:
            link.close()
        if wire is not None:
            wire.close()
        self.fail_peer(peer, error)

    def forget_peer(self, index: int, error: Exception) -> None:
        """A peer that was waited for does not exist."""
        self.fail_peer(self.by_index.pop(index), error)

    def fail_peer(self, peer: Peer, error: Exception) -> None:
        """Fail what waits for a peer, and cancel what it waits for."""
        index = peer.index
        self.known.pop(peer.identity, None)
        peer.is_open = False
        peer.link = None
        self.close_lane(peer)
        peer.backlog.clear()
        for ident in [key for key, pending in self.pending.items() if pending.target.index == index]:
            pending = self.pending.pop(ident)
            pending.forget()
            pending.reject(copy.copy(error))  # each raiser adds to its own traceback
        for target in [target for target in self.busy if target.index == index]:
            self.busy.discard(target)
            self.node.letters.add(f"a message to {target.address.name}", error, count=target.reset(error))
        peer.serving.close()

    # Receiving

    def receive(self, identity: bytes, data: bytes, frames: Sequence[Frame]) -> None:
        is_large = bool(frames) or data.startswith(envelope.LED)
        if is_large:
            data, frames = self.find_frames(identity, data, frames)
            if not frames:
                self.bulk.give_back()
                return
        self._receiving = True
        try:
            self._read(identity, data, frames)
        finally:
            self._receiving = False
            if is_large:  # what was lent and is not kept is given back with the answer
                del frames
                self.bulk.give_back()
            if self._dirty:
                self.flush()  # what is answered by now goes out while the next batch is read

    def _read(self, identity: bytes, data: bytes, frames: Sequence[Frame]) -> None:
        whole = True
        try:
            batch: list[Any] = envelope.split(self.node.codec, data, frames)
        except CodecError:
            whole = False
            try:
                batch = envelope.salvage(self.node.codec, data, frames)
            except CodecError as error:
                self.bad(identity, error)
                return
        self.last_inbound = len(batch)
        pending = self.pending
        peer = self.known.get(identity)
        for parts in batch:
            try:
                # The two kinds that make up nearly all traffic go the short way.
                if whole and peer is not None:
                    kind = parts[0]
                    if kind == REPLY and len(parts) == 3:
                        if (waiting := pending.pop(parts[1], None)) is not None:
                            waiting.settle(parts[2])
                        continue
                    if kind == ASK and len(parts) == 7:
                        peer.serving.answer(parts)
                        continue
                self._dispatch(identity, parts)
                peer = self.known.get(identity)
            except Exception as error:  # the boundary around bytes from elsewhere: a bad message is dropped
                self.bad(identity, error)

    def _dispatch(self, identity: bytes, parts: Any) -> None:
        error: CodecError | None = None
        if isinstance(parts, envelope.Unreadable):
            parts, error = parts.head, parts.error
        if not envelope.is_well_formed(parts):
            raise error or CodecError("a malformed envelope")
        peer = self.known.get(identity)
        if peer is None:
            self._hello(identity, parts)
            return
        kind = parts[0]
        if error is not None:
            self._unreadable(peer, parts, error)
            return
        if kind == REPLY or kind == envelope.END:
            self._settle(parts[1], parts[2] if kind == REPLY else None, None)
        elif kind == ASK or kind == envelope.STREAM:
            peer.serving.ask(parts)
        elif kind == envelope.BULK:
            self.last_inbound -= 1  # nobody answers it
            if peer.lane is not None:
                peer.lane.control(parts[1], parts[2])
        elif kind == envelope.ERROR:
            self._settle(parts[1], None, parts[2])
        elif kind == envelope.TELL:
            peer.serving.tell(parts)
        elif kind == envelope.ITEM:
            pending = self.pending.get(parts[1])
            if pending is not None:
                pending.item(parts[2])
        elif kind == envelope.CANCEL:
            peer.serving.cancel(parts[1])
        elif kind == envelope.CREDIT:
            peer.serving.credit(parts[1], parts[2])
        elif kind == envelope.ACK:
            for actor, count in parts[1]:
                target = self.node.known_target(actor)
                if target is not None:
                    target.confirm(count)
        elif kind == envelope.GATHER:
            peer.serving.gather(parts)
        elif kind == envelope.GATHERED:
            pending = self.pending.get(parts[1])
            if pending is not None and pending.outcomes(*parts[2:]):
                del self.pending[parts[1]]
        elif kind == envelope.TELL_ALL:
            peer.serving.tell_all(parts)
        elif kind == envelope.WAITS:
            self.node.cycles.arrived(peer, parts[1], parts[2])
        elif kind == envelope.HELLO:
            self._hello(identity, parts)
        elif peer.index == 0:
            self._from_directory(parts)

    def _settle(self, ident: int, value: Any, error: BaseException | None) -> None:
        pending = self.pending.pop(ident, None)
        if pending is None:
            return
        if error is None:
            pending.resolve(value)
        else:
            pending.reject(error)
        pending.release()

    def _unreadable(self, peer: Peer, parts: list[Any], error: CodecError) -> None:
        """An envelope whose head can be read, but not its body: whoever waits for it hears why."""
        kind, ident = parts[0], parts[1]
        if kind in (envelope.ASK, envelope.STREAM, envelope.GATHER):
            self.send(peer.index, [envelope.ERROR, ident, error])
        elif kind in (envelope.REPLY, envelope.ERROR, envelope.GATHERED):
            self._settle(ident, None, error)
        elif kind == envelope.ITEM:
            pending = self.pending.get(ident)
            if pending is not None:
                pending.target.cancel(pending)
                pending.reject(error)
        elif kind == envelope.TELL:
            peer.serving.ack(ident)
        elif kind == envelope.TELL_ALL:
            for actor in ident:
                peer.serving.ack(actor)
        self.bad(peer.identity, error)

    def _hello(self, identity: bytes, parts: list[Any]) -> None:
        if self.network is not None and self.network.is_from_there(identity):
            self.network.hello(identity, parts)
            return
        token, index, incarnation, url, address = parts[1:6] if parts[0] == envelope.HELLO else ("", -1, -1, "", None)
        peer = self.by_index.get(index)
        name = b"%d:%d>%d:%d" % (index, incarnation, self.node.index, self.node.incarnation)
        if token != self.node.mesh or peer is None or identity != name:
            raise CodecError(f"a message from {identity!r}, which has not said hello")
        if incarnation < peer.incarnation or peer.dead is not None:
            return
        if self.greeted is not None and not self.greeted(index, incarnation, url, address):
            return
        self.connect(index, incarnation, url)
        self.known[identity] = peer

    def _from_directory(self, parts: list[Any]) -> None:
        if parts[0] == envelope.PEER:
            _, index, incarnation, url, key, error, final = parts
            if url is not None:
                self.connect(index, incarnation, url, key)
                self.open_peer(index)
            elif index in self.by_index:
                self.peer_down(index, incarnation, error, final=final)
        elif parts[0] == envelope.NAME:
            _, name, ref = parts
            if ref is None:
                self.node.names.pop(name, None)
            else:
                self.node.names[name] = ref
