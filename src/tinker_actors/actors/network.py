"""A node's links to other hosts: tcp with CURVE, heartbeats, and a way back after a cut.

A link is two connections, one each way. ZeroMQ's own threads serve the heartbeats, so a node whose event loop is
blocked stays linked. When a connection breaks or falls silent, everything that waits on it fails at once, and both
sides forget what the other has asked. ZeroMQ connects again by itself; then the sides greet each other anew:

    HELLO ... session, heard     my connection to you is my `session`-th; the last of yours that I heard of is `heard`

A side that hears of a new session without having lost its own connection resets the link too; one whose session was
not heard greets once more. Nothing is sent through a link before both have heard of each other. Whoever is no longer
known to the other side, or not yet, is told so by a `STRANGER` on its own connection, and greets again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import zmq

from tinker_actors.actors import envelope
from tinker_actors.actors.chunks import SUFFIX
from tinker_actors.actors.codec import Frame
from tinker_actors.actors.endpoint import Endpoint
from tinker_actors.actors.errors import CodecError, NodeDiedError, NodeUnreachableError, UnroutableError
from tinker_actors.actors.guest_serving import GuestServing
from tinker_actors.actors.keys import Keys
from tinker_actors.actors.link import Inbound, Outbound
from tinker_actors.actors.monitor import FAILED, LINK, Monitor
from tinker_actors.actors.secure import Security
from tinker_actors.actors.serving import Serving

if TYPE_CHECKING:
    from tinker_actors.actors.exchange import Exchange
    from tinker_actors.actors.peer import Peer

logger = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds that requests wait for a first connection
JOINING = b"join "
STRANGER = b"\x00"
_THERE = b"tcp "  # begins the names of senders that came in through the network


class Connection(Outbound):
    """A connection to another host, watched by `on_event(event, value)`."""

    def __init__(
        self, network: Network, endpoint: Endpoint, key: str | None, name: bytes, on_event: Callable[[int, int], None]
    ) -> None:
        self._monitor: Monitor | None = None
        exchange = network.exchange

        def configure(socket: zmq.Socket[bytes]) -> None:
            network.security.configure_client(socket, key, network.ping, is_ipv6=endpoint.is_ipv6)
            self._monitor = Monitor(exchange.loop, socket, LINK, on_event)

        super().__init__(exchange.context, exchange.loop, endpoint.url, name, exchange.schedule, configure)

    def close(self, linger: int = 0) -> None:
        """Close it for good."""
        if self._monitor is not None:
            self._monitor.close()
        super().close(linger)


class Wire(Connection):
    """One peer's outbound connection and what it is at.

    Attributes:
        session: which connection this is; 0 before the first.
        heard: the peer's session that was heard of last; 0 for none.
        is_up: the connection stands.
    """

    def __init__(self, network: Network, peer: Peer, endpoint: Endpoint, key: str | None) -> None:
        self.session = 0
        self.heard = 0
        self.is_up = False
        self.url = endpoint.url
        self.endpoint = endpoint
        self.key = key

        def event(kind: int, value: int) -> None:
            network.event(peer, self, kind, value)

        super().__init__(network, endpoint, key, network.exchange.identity_to(peer), event)
        loop = network.exchange.loop
        self.patience = loop.call_later(PATIENCE, network.lost, peer, self, "there is no connection to it")

    def is_unknown(self) -> bool:
        """Whether the other side has said so since the last time."""
        said = False
        with contextlib.suppress(zmq.Again):
            while not self._socket.closed:
                said = self._socket.recv(zmq.DONTWAIT) == STRANGER or said
        return said

    def close(self, linger: int = 0) -> None:
        """Close it for good."""
        self.patience.cancel()
        super().close(linger)


class Network:
    """See the module.

    Attributes:
        url: where this node listens.
        ping: seconds between heartbeats; a silent link is cut after one to two of them.
        joined: on node 0, answers a stranger's request to join.
        linked: told of every link that opens or is cut.
        expected: nodes that may say hello before anything else is known of them: (incarnation, public key) by index.
        host: what stands for "every address" in a url of node 0's host.
    """

    def __init__(self, exchange: Exchange, keys: Keys | None, ping: float) -> None:
        self.exchange = exchange
        self.keys = keys
        self.ping = ping
        self.url: str | None = None
        self.host = ""
        self.joined: Callable[[bytes], bytes] | None = None
        self.linked: Callable[[int, bool], None] | None = None
        self.expected: dict[int, tuple[int, str | None]] = {}
        self.security = Security(exchange.context, keys)
        self._inbound: Inbound | None = None
        self._beating = exchange.loop.call_later(ping, self._beat)

    def listen(self, endpoint: Endpoint) -> Endpoint:
        """Bind the inbound socket; returns where.

        Raises:
            ListenError: the address is taken, or not this host's.
        """
        exchange = self.exchange
        if endpoint.host == "localhost":
            endpoint = Endpoint("127.0.0.1", endpoint.port)

        def configure(socket: zmq.Socket[bytes]) -> None:
            self.security.configure_server(socket, is_ipv6=endpoint.is_ipv6)

        inbound = self._inbound = Inbound(
            exchange.context,
            exchange.loop,
            endpoint.url,
            exchange.max_message,
            self._receive,
            configure,
        )
        exchange.lookout.inbounds.append(inbound)
        self.url = inbound.url
        return Endpoint.parse(inbound.url)

    def close(self) -> None:
        """Stop listening."""
        self._beating.cancel()
        if self._inbound is not None:
            self._inbound.close()
        self.security.close()

    def is_from_there(self, identity: bytes) -> bool:
        """Whether a message came in through the network."""
        return identity.startswith(_THERE)

    def connect(self, peer: Peer, incarnation: int, url: str, key: str | None) -> None:
        """Link to a peer's incarnation."""
        if peer.wire is not None:
            if peer.incarnation == incarnation:
                return
            self.exchange.peer_down(peer.index, peer.incarnation, NodeDiedError(f"node {peer.index} was replaced"))
        peer.incarnation = incarnation
        peer.identity = _THERE + self.exchange.identity_from(peer)
        peer.serving = self._serving(peer)
        peer.wire = Wire(self, peer, Endpoint.parse(url).at(self.host), key)

    def await_peer(self, index: int) -> Peer:
        """A node that is not known yet; node 0's word of it may still be on its way."""
        exchange = self.exchange
        peer = exchange.add_peer(index)

        def give_up() -> None:
            if peer.wire is None and peer.link is None and peer.dead is None and not exchange.closed:
                exchange.forget_peer(index, UnroutableError(f"there is no node {index} in this mesh"))

        exchange.loop.call_later(PATIENCE, give_up)
        return peer

    def event(self, peer: Peer, wire: Wire, event: int, value: int) -> None:
        """Something became of a peer's outbound connection."""
        if peer.wire is not wire:
            return
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            wire.is_up = True
            wire.session += 1
            self._greet(wire)
            self._open(peer, wire)
        elif event & FAILED:
            logger.error("node %d at %s: %s", peer.index, wire.url, self.security.explain(event, value))
        else:
            self.lost(peer, wire, "its connection broke or fell silent")

    def hello(self, identity: bytes, parts: list[Any]) -> None:
        """The first envelope of a connection from elsewhere.

        Raises:
            CodecError: a stranger, or no hello.
        """
        exchange = self.exchange
        if parts[0] != envelope.HELLO:
            self._refuse(identity)
            if self._is_cut(identity):
                return  # sent before its sender knew of the cut, and failed there too
            raise CodecError(f"a message from {identity!r}, which has not said hello")
        _, token, index, incarnation, _, url, session, heard = parts
        if token != exchange.node.mesh or not isinstance(index, int) or not isinstance(session, int):
            raise CodecError(f"{identity!r} is of another mesh")
        if index in self.expected and self.expected[index][0] == incarnation:
            exchange.connect(index, incarnation, url, self.expected.pop(index)[1])
        peer = exchange.find_peer(index)
        if peer is None or peer.wire is None or peer.dead is not None or incarnation != peer.incarnation:
            self._refuse(identity)  # not known yet, or any more
            return
        if identity != peer.identity:
            raise CodecError(f"{identity!r} calls itself node {index}")
        wire = peer.wire
        if wire.heard not in (0, session):
            self._reset(peer, wire, "its connection broke")
        wire.heard = session
        exchange.known[identity] = peer
        if wire.is_up and heard != wire.session:
            self._greet(wire)
        self._open(peer, wire)

    def lost(self, peer: Peer, wire: Wire, why: str) -> None:
        """A peer's connection is gone, for now."""
        if peer.wire is wire:
            wire.is_up = False
            self._reset(peer, wire, why)
            self._refuse(peer.identity)

    def refuse(self, peer: Peer) -> None:
        """Tell a peer that was given up."""
        self._refuse(peer.identity)

    def _reset(self, peer: Peer, wire: Wire, why: str) -> None:
        wire.heard = 0
        wire.drop()
        wire.patience.cancel()
        first = peer.cut is None
        peer.cut = NodeUnreachableError(f"node {peer.index} at {wire.url} can't be reached: {why}")
        if not first:
            return
        level = logging.WARNING if peer.is_announced else logging.INFO
        logger.log(level, "node %d at %s can't be reached: %s", peer.index, wire.url, why)
        self.exchange.fail_peer(peer, peer.cut)
        peer.serving = self._serving(peer)
        if self.linked is not None:
            self.linked(peer.index, False)

    def _open(self, peer: Peer, wire: Wire) -> None:
        if not (wire.is_up and wire.heard) or peer.link is wire:
            return
        wire.patience.cancel()
        if peer.cut is not None:
            logger.warning("node %d at %s is back", peer.index, wire.url)
        peer.cut = None
        peer.link = wire
        self.exchange.open_lane(peer, wire, lambda: self._connect_for_chunks(peer, wire), same_host=False)
        if peer.is_announced:
            self.exchange.open_peer(peer.index)
        if self.linked is not None:
            self.linked(peer.index, True)

    def _connect_for_chunks(self, peer: Peer, wire: Wire) -> Outbound:
        """A second connection to a peer, for its large data; its end is the link's."""

        def event(kind: int, value: int) -> None:
            if peer.link is wire and kind == zmq.EVENT_DISCONNECTED:
                self._renew(peer, wire, "its connection for large data broke")

        return Connection(self, wire.endpoint, wire.key, self.exchange.identity_to(peer) + SUFFIX, event)

    def _renew(self, peer: Peer, wire: Wire, why: str) -> None:
        """Begin a link anew whose own connection stands."""
        if peer.link is wire:
            self._reset(peer, wire, why)
        wire.session += 1
        self._greet(wire)

    def _refuse(self, identity: bytes) -> None:
        if self._inbound is not None:
            self._inbound.reply(identity.removeprefix(_THERE), STRANGER)

    def _beat(self) -> None:
        """See what came back on the outbound connections; their descriptors make no edge that could be relied on."""
        self._beating = self.exchange.loop.call_later(self.ping, self._beat)
        for peer in list(self.exchange.peers()):
            wire = peer.wire
            if wire is not None and wire.is_unknown() and wire.is_up:
                self._renew(peer, wire, "it broke off the link")

    def _greet(self, wire: Wire) -> None:
        wire.put(self.exchange.hello(wire.session, wire.heard), now=True)

    def _serving(self, peer: Peer) -> Serving:
        node = self.exchange.node
        return GuestServing(node, peer) if peer.index else Serving(node, peer)

    def _is_cut(self, identity: bytes) -> bool:
        return any(peer.identity == identity and peer.wire is not None for peer in self.exchange.peers())

    def _receive(self, identity: bytes, data: bytes, frames: Sequence[Frame]) -> None:
        if identity.startswith(JOINING):
            if self.joined is not None and self._inbound is not None:
                self._inbound.reply(identity, self.joined(data))
            return
        self.exchange.receive(_THERE + identity, data, frames)
