"""The other nodes of the mesh, as this one sees them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tinker_actors.actors.codec import Frame
from tinker_actors.actors.errors import UnroutableError
from tinker_actors.actors.serving import Serving

if TYPE_CHECKING:
    from tinker_actors.actors.link import Outbound
    from tinker_actors.actors.network import Network, Wire
    from tinker_actors.actors.node import Node


class Peer:
    """Another node, over all its incarnations.

    Attributes:
        link: the way to its present incarnation, or None while there is none.
        is_open: its actors are there; until then requests wait in `backlog`.
        is_announced: its actors may be asked as soon as there is a link.
        dead: why it is not coming back.
        cut: why it can't be reached now.
        wire: its connection through the network, if it is reached in that way.
    """

    __slots__ = (
        "backlog",
        "cut",
        "dead",
        "identity",
        "incarnation",
        "index",
        "is_announced",
        "is_open",
        "link",
        "serving",
        "wire",
    )

    def __init__(self, node: Node, index: int) -> None:
        self.index = index
        self.incarnation = 0
        self.identity = b""
        self.link: Outbound | None = None
        self.is_open = False
        self.is_announced = False
        self.dead: Exception | None = None
        self.cut: Exception | None = None
        self.wire: Wire | None = None
        self.backlog: list[tuple[int, bytes, Sequence[Frame]]] = []
        self.serving = Serving(node, index)


class PeerTable:
    """All nodes that this one knows, by index.

    Attributes:
        network: the way to other hosts, if there is one.
        known: those that have said hello, by the name that they said it under.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.closed = False
        self.network: Network | None = None
        self.known: dict[bytes, Peer] = {}
        self._peers = {other: Peer(node, other) for other in range(node.count) if other != node.index}

    def require(self, index: int) -> Peer:
        """The peer, if a request to it can ever arrive.

        Raises:
            UnroutableError: there is no such node, or the mesh is closed.
            NodeDiedError: the node is gone for good.
            NodeUnreachableError: the link to its host is cut.
        """
        peer = self._peers.get(index)
        if peer is None and self.network is not None and not self.closed:
            peer = self.network.await_peer(index)
        if self.closed or peer is None:
            raise UnroutableError("the mesh is closed" if self.closed else f"there is no node {index} in this mesh")
        if peer.dead is not None:
            raise copy.copy(peer.dead)
        if peer.cut is not None:
            raise copy.copy(peer.cut)
        return peer

    def add_peer(self, index: int) -> Peer:
        """The peer of this index, which may be new."""
        peer = self._peers.get(index)
        if peer is None:
            peer = self._peers[index] = Peer(self.node, index)
            self.node.count = max(self.node.count, index + 1)
        return peer

    def find_peer(self, index: int) -> Peer | None:
        """The peer of this index, if it is known."""
        return self._peers.get(index)

    def peers(self) -> Iterable[Peer]:
        """All peers that were ever known."""
        return self._peers.values()

    def is_open(self, index: int) -> bool:
        """Whether the node's actors can be reached now."""
        return self._peers[index].is_open

    def is_linked(self, index: int) -> bool:
        """Whether an incarnation of the node lives, though its actors may not be there yet."""
        return self._peers[index].link is not None

    def may_route(self, index: int) -> bool:
        """Whether the node is there, or coming back by itself."""
        peer = self._peers.get(index)
        return peer is not None and peer.dead is None and peer.cut is None and (peer.wire is None or peer.is_announced)

    def identity_to(self, peer: Peer) -> bytes:
        """Our name on the link to a peer's incarnation; on a link to another one it means nothing."""
        return b"%d:%d>%d:%d" % (self.node.index, self.node.incarnation, peer.index, peer.incarnation)

    def identity_from(self, peer: Peer) -> bytes:
        """A peer's name on its link to us."""
        return b"%d:%d>%d:%d" % (peer.index, peer.incarnation, self.node.index, self.node.incarnation)
