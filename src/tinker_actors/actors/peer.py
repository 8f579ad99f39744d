"""The other nodes of the mesh, as this one sees them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tinker_actors.actors import envelope, packing
from tinker_actors.actors.bulk import Bulk
from tinker_actors.actors.chunks import SUFFIX
from tinker_actors.actors.codec import Frame
from tinker_actors.actors.errors import CodecError, UnroutableError
from tinker_actors.actors.serving import Serving

if TYPE_CHECKING:
    from tinker_actors.actors.lane import Lane
    from tinker_actors.actors.link import Outbound
    from tinker_actors.actors.network import Network, Wire
    from tinker_actors.actors.node import Node


logger = logging.getLogger(__name__)

LOG_EVERY = 1.0  # seconds: bad messages are logged no more often
TEXT_LIMIT = 500  # characters of what is wrong with one


class Peer:
    """Another node, over all its incarnations.

    Attributes:
        link: the way to its present incarnation, or None while there is none.
        lane: the way for what is large, as long as there is a link.
        is_open: its actors are there; until then requests wait in `backlog`, by their ids, tells by negative numbers.
        is_announced: its actors may be asked as soon as there is a link.
        dead: why it is not coming back.
        cut: why it can't be reached now.
        former: the name under which an incarnation said hello that has ended since; empty if none has.
        wire: its connection through the network, if it is reached in that way.
    """

    __slots__ = (
        "backlog",
        "cut",
        "dead",
        "former",
        "identity",
        "incarnation",
        "index",
        "is_announced",
        "is_open",
        "lane",
        "link",
        "serving",
        "wire",
    )

    def __init__(self, node: Node, index: int) -> None:
        self.index = index
        self.incarnation = 0
        self.identity = b""
        self.former = b""
        self.link: Outbound | None = None
        self.lane: Lane | None = None
        self.is_open = False
        self.is_announced = False
        self.dead: Exception | None = None
        self.cut: Exception | None = None
        self.wire: Wire | None = None
        self.backlog: dict[int, tuple[Sequence[int], bytes, Sequence[Frame]]] = {}
        self.serving = Serving(node, self)


class PeerTable:
    """All nodes that this one knows, by index.

    Attributes:
        url: where this node listens.
        closed: why nothing is sent any more; empty while it is.
        network: the way to other hosts, if there is one.
        known: those that have said hello, by the name that they said it under.
        bad_messages: what came in and could not be read.
        bulk: what the ways for large data share.
        by_index: the nodes themselves.
        dirty: links with something to send at the end of this turn.
        receiving: whether a batch is being read, at whose end they are flushed.
    """

    def __init__(self, node: Node, bulk: Bulk) -> None:
        self.node = node
        self.url = ""
        self.closed = ""
        self.bad_messages = 0
        self._bad_logged = -LOG_EVERY
        self.bulk = bulk
        self.dirty: list[Outbound] = []
        self._flush_scheduled = False
        self.receiving = False
        self.network: Network | None = None
        self.known: dict[bytes, Peer] = {}
        self.by_index = {other: Peer(node, other) for other in range(node.count) if other != node.index}

    def require(self, index: int) -> Peer:
        """The peer, if a request to it can ever arrive.

        Raises:
            UnroutableError: there is no such node, or the mesh is closed.
            NodeDiedError: the node is gone for good.
            NodeUnreachableError: the link to its host is cut.
        """
        peer = self.by_index.get(index)
        if peer is None and self.network is not None and not self.closed:
            peer = self.network.await_peer(index)
        if self.closed or peer is None:
            raise UnroutableError(self.closed or f"there is no node {index} in this mesh")
        if peer.dead is not None:
            raise copy.copy(peer.dead)
        if peer.cut is not None:
            raise copy.copy(peer.cut)
        return peer

    def add_peer(self, index: int) -> Peer:
        """The peer of this index, which may be new."""
        peer = self.by_index.get(index)
        if peer is None:
            peer = self.by_index[index] = Peer(self.node, index)
            self.node.count = max(self.node.count, index + 1)
        return peer

    def find_peer(self, index: int) -> Peer | None:
        """The peer of this index, if it is known."""
        return self.by_index.get(index)

    def peers(self) -> Iterable[Peer]:
        """All peers that were ever known."""
        return self.by_index.values()

    def is_open(self, index: int) -> bool:
        """Whether the node's actors can be reached now."""
        return self.by_index[index].is_open

    def is_linked(self, index: int) -> bool:
        """Whether an incarnation of the node lives, though its actors may not be there yet."""
        return self.by_index[index].link is not None

    def may_route(self, index: int) -> bool:
        """Whether the node is there, or coming back by itself."""
        peer = self.by_index.get(index)
        return peer is not None and peer.dead is None and peer.cut is None and (peer.wire is None or peer.is_announced)

    def identity_to(self, peer: Peer) -> bytes:
        """Our name on the link to a peer's incarnation; on a link to another one it means nothing."""
        return b"%d:%d>%d:%d" % (self.node.index, self.node.incarnation, peer.index, peer.incarnation)

    def identity_from(self, peer: Peer) -> bytes:
        """A peer's name on its link to us."""
        return b"%d:%d>%d:%d" % (peer.index, peer.incarnation, self.node.index, self.node.incarnation)

    def has_ended(self, identity: bytes) -> bool:
        """Whether a name is that of an incarnation which has ended: what it said before that may be read after it."""
        name = identity.removesuffix(SUFFIX)
        return any(peer.former == name for peer in self.by_index.values())

    def hello(self, session: int, heard: int) -> bytes:
        """What begins a link."""
        node = self.node
        network = None if self.network is None else self.network.url
        return self.node.codec.encode(
            [envelope.HELLO, node.mesh, node.index, node.incarnation, self.url, network, session, heard]
        )

    @property
    def has_unsent(self) -> bool:
        """Whether anything for a peer that can be reached has not been handed to ZeroMQ yet."""
        return any(
            peer.link is not None and not (peer.link.is_idle and (peer.lane is None or not peer.lane.waiting))
            for peer in self.by_index.values()
        )

    def flush(self) -> None:
        """Send what this loop turn has gathered."""
        self._flush_scheduled = False
        if self.bulk.returning:
            self.bulk.give_back()
        dirty, self.dirty = self.dirty, []
        for link in dirty:
            link.flush()

    def schedule(self, link: Outbound) -> None:
        self.dirty.append(link)
        if not self._flush_scheduled and not self.receiving:
            self._flush_scheduled = True
            self.node.loop.call_soon(self.flush)

    def open_lane(self, peer: Peer, link: Outbound, connect: Callable[[], Outbound], *, same_host: bool) -> None:
        """Make the way for large data beside a new link; `connect` makes its own connection when it needs one."""
        from tinker_actors.actors.lane import Lane

        pack = packing.plain_encoder()

        def control(kind: int, value: object) -> None:
            link.put(pack([envelope.BULK, kind, value]))

        peer.lane = Lane(self.bulk, link, control, connect, same_host=same_host)

    def close_lane(self, peer: Peer) -> None:
        """The link is gone, and with it what was on its way."""
        lane, peer.lane = peer.lane, None
        if lane is not None:
            lane.close()

    def find_frames(self, identity: bytes, data: bytes, frames: Sequence[Frame]) -> tuple[bytes, list[Frame]]:
        """A batch, and its frames with what their descriptors name; none if it is a chunk of large data, or bad."""
        peer = self.known.get(identity.removesuffix(SUFFIX) if frames else identity)
        try:
            if peer is None and self.has_ended(identity):
                return data, []
            if peer is None or peer.lane is None:
                raise CodecError("large data from a node that has not said hello")
            if not frames:
                descriptors, batch = envelope.led(data)
                return batch, peer.lane.find(descriptors)
            if not identity.endswith(SUFFIX):
                return data, peer.lane.find_frames(frames)
            peer.lane.chunk(data, frames)
        except Exception as error:  # the boundary around bytes from elsewhere: a bad message is dropped
            self.bad(identity, error)
        return data, []

    def bad(self, identity: bytes, error: Exception) -> None:
        """Count and log a message that can't be read."""
        self.bad_messages += 1
        now = self.node.loop.time()
        if now - self._bad_logged >= LOG_EVERY:
            self._bad_logged = now
            text = str(error)[:TEXT_LIMIT]
            logger.warning(
                "a message from %r was dropped (%d by now): %s: %s",
                identity[:TEXT_LIMIT],
                self.bad_messages,
                type(error).__name__,
                text,
            )
