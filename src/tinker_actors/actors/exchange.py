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
from tinker_actors.actors.errors import CodecError, NodeDiedError, UnroutableError
from tinker_actors.actors.intake import Intake
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
        intake: reads what comes in.
        receive: gives the intake a batch, see `Intake.receive`.
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
        self.intake = Intake(self)
        self.receive = self.intake.receive
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
        self.closed = "the mesh is closed"
        error = UnroutableError(self.closed)
        for pending in list(self.pending.values()):
            pending.reject(copy.copy(error))
        self.pending.clear()
        self.far.close()
        for target in list(self.busy):
            target.reset(error)
        self.busy.clear()
        self.intake.close()
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

    def abandon(self) -> None:
        """Send nothing more, and leave everything as it is: it is another process's."""
        self.closed = "the mesh is in the process that this one was forked from"
        for peer in self.by_index.values():
            peer.is_open = False

    def idle(self) -> None:
        """An actor has nothing to do: what it wrote goes out, unless more messages of the same turn follow."""
        if self.dirty and self.last_inbound <= 1:
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

    def settle(self, ident: int, value: Any, error: BaseException | None) -> None:
        """The last answer to a message of ours has come."""
        pending = self.pending.pop(ident, None)
        if pending is None:
            return
        if error is None:
            pending.resolve(value)
        else:
            pending.reject(error)
        pending.release()

    def cancel(self, index: int, ident: int) -> None:
        """Cancel a request; one that has not left yet never does."""
        peer = self.by_index[index]
        if peer.backlog.pop(ident, None) is not None:
            self.settle(ident, None, None)
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
        if self.known.pop(peer.identity, None) is not None:
            peer.former = peer.identity
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
