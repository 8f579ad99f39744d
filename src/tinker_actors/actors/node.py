"""One process of a mesh: its actors, its links to the other processes, and what waits for their answers."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from tinker_actors.actors import envelope
from tinker_actors.actors.cell import Cell
from tinker_actors.actors.codec import Codec, Frame
from tinker_actors.actors.control import SYSTEM_IDS, CellEnded, CellRestarted, Report
from tinker_actors.actors.deadlines import CoarseTimer
from tinker_actors.actors.errors import ActorDiedError, CodecError, NodeDiedError, UnroutableError
from tinker_actors.actors.ref import ActorRef, Address, Options, Target
from tinker_actors.actors.remote import Pending, RemoteTarget
from tinker_actors.actors.serving import Serving
from tinker_actors.errors import ActorError

if TYPE_CHECKING:
    import zmq

    from tinker_actors.actors.link import Inbound, Outbound
    from tinker_actors.actors.message import Message

logger = logging.getLogger(__name__)

ENDED = 4096  # actors whose end a node remembers, to say how they ended
MAX_MESSAGE = 512 * 1024 * 1024  # bytes of one message and its frames


class Supervisor(Protocol):
    """Who hears what becomes of this node's actors."""

    def report(self, report: Report) -> None:
        """An actor was restarted or ended."""
        ...

    async def stop_children(self, parent: int) -> None:
        """End every actor that `parent` spawned, wherever it is."""
        ...


class Peer:
    """Another node, over all its incarnations.

    Attributes:
        link: the way to its present incarnation, or None while there is none.
        is_open: its actors are there; until then requests wait in `backlog`.
        dead: why it is not coming back.
    """

    __slots__ = ("backlog", "dead", "identity", "incarnation", "index", "is_open", "link", "serving")

    def __init__(self, node: Node, index: int) -> None:
        self.index = index
        self.incarnation = 0
        self.identity = b""
        self.link: Outbound | None = None
        self.is_open = False
        self.dead: Exception | None = None
        self.backlog: list[tuple[bytes, Sequence[Frame]]] = []
        self.serving = Serving(node, index)


class Gone:
    """The target of a ref whose actor is no longer on this node."""

    def __init__(self, node: Node, address: Address) -> None:
        self._node = node
        self._address = address

    def _refuse(self) -> NoReturn:
        raise self._node.refusal(self._address.id)

    async def ask(self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Refuse."""
        self._refuse()

    def tell(self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Count a dead letter."""
        self._node.dead_letters += 1

    async def stream(self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Refuse at the first item."""
        self._refuse()
        yield


class Node:
    """See the module. `count` nodes have the indices 0 to `count - 1`; this one is `index`."""

    def __init__(self, *, mesh: str, index: int, incarnation: int, count: int, max_message: int = MAX_MESSAGE) -> None:
        self.loop = asyncio.get_running_loop()
        self.timer = CoarseTimer(self.loop)
        self.context = contextvars.copy_context()
        self.mesh = mesh
        self.index = index
        self.incarnation = incarnation
        self.count = count
        self.max_message = max_message
        self.url = ""
        self.codec = Codec(self)
        self.cells: dict[int, Cell] = {}
        self.names: dict[str, ActorRef] = {}
        self._ended: OrderedDict[int, Cell] = OrderedDict()
        self.pending: dict[int, Pending] = {}
        self.busy: set[RemoteTarget] = set()
        self.dead_letters = 0
        self.bad_messages = 0
        self.closed = False
        self.supervisor: Supervisor | None = None
        self.greeted: Callable[[int, int, str], bool] | None = None
        self.next_id = itertools.count(1).__next__
        self._targets: weakref.WeakValueDictionary[int, RemoteTarget] = weakref.WeakValueDictionary()
        self._peers = {other: Peer(self, other) for other in range(count) if other != index}
        self._known: dict[bytes, Peer] = {}
        self._dirty: list[Outbound] = []
        self._flush_scheduled = False
        self._last_inbound = 0
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._inbound: Inbound | None = None

    # Life

    def listen(self, url: str) -> None:
        """Bind the inbound socket."""
        import zmq

        from tinker_actors.actors.link import Inbound

        self.url = url
        self._context = zmq.Context()
        self._inbound = Inbound(self._context, self.loop, url, self.max_message, self._receive)

    def close(self) -> None:
        """Close every socket and fail everything that still waits."""
        self.closed = True
        error = UnroutableError("the mesh is closed")
        for pending in list(self.pending.values()):
            pending.reject(error)
        self.pending.clear()
        for target in list(self.busy):
            target.reset(error)
        self.busy.clear()
        for peer in self._peers.values():
            peer.serving.alive = False
            if peer.link is not None:
                peer.link.close()
        if self._inbound is not None:
            self._inbound.close()
        if self._context is not None:
            self._context.destroy(linger=0)
        self.timer.close()

    # Refs

    def export_ref(self, ref: ActorRef) -> list[Any]:
        """A ref as plain data."""
        address = ref.address
        if address.mesh != self.mesh:
            raise CodecError(f"{ref!r} belongs to another mesh; it can't be sent through this one")
        return [address.mesh, address.id, address.node, address.name, address.kind, address.mailbox]

    def import_ref(self, parts: list[Any]) -> ActorRef:
        """The ref that the data means in this process."""
        mesh, ident, node, name, kind, mailbox = parts
        if mesh != self.mesh:
            raise CodecError("a ref of another mesh")
        return self.ref(Address(mesh=mesh, id=ident, node=node, name=name, kind=kind, mailbox=mailbox))

    def ref(self, address: Address) -> ActorRef:
        """The ref to an actor, wherever it is."""
        if address.node == self.index:
            cell = self.cells.get(address.id)
            return ActorRef(address, Gone(self, address)) if cell is None else cell.ref
        target: Target | None = self._targets.get(address.id)
        if target is None:
            target = self._targets[address.id] = RemoteTarget(self, address)
        return ActorRef(address, target)

    # The host of its cells

    def dead_letter(self, message: Message, error: BaseException) -> None:
        """Count and log a tell that failed or was not served."""
        self.dead_letters += 1
        logger.warning("a tell of %s was dropped or failed: %s: %s", message.method, type(error).__name__, error)

    def idle(self) -> None:
        """An actor has nothing to do: what it wrote goes out, unless more messages of the same turn follow."""
        if self._dirty and self._last_inbound <= 1:
            self.flush()

    def restarted(self, cell: Cell, incarnation: int, reason: BaseException | None) -> None:
        """Report a new incarnation."""
        if self.supervisor is not None:
            self.supervisor.report(CellRestarted(id=cell.id, incarnation=incarnation, reason=reason))

    def ended(self, cell: Cell, failure: BaseException | None) -> None:
        """Forget and report a cell that has ended."""
        self.cells.pop(cell.id, None)
        self._ended[cell.id] = cell
        if len(self._ended) > ENDED:
            self._ended.popitem(last=False)
        if self.supervisor is not None and cell.id >= SYSTEM_IDS:
            self.supervisor.report(CellEnded(id=cell.id, reason=failure))

    def refusal(self, ident: int) -> ActorError:
        """Why an actor of this node that isn't in `cells` takes no messages."""
        cell = self._ended.get(ident)
        if cell is not None:
            return cell.refusal()
        return ActorDiedError(f"actor {ident} no longer runs on node {self.index}")

    async def stop_children(self, parent: int) -> None:
        """End every actor that `parent` spawned."""
        if self.supervisor is not None:
            await self.supervisor.stop_children(parent)

    # Sending

    def require(self, index: int) -> Peer:
        """The peer, if a request to it can ever arrive.

        Raises:
            UnroutableError: there is no such node, or the mesh is closed.
            NodeDiedError: the node is gone for good.
        """
        peer = self._peers.get(index)
        if self.closed or peer is None:
            raise UnroutableError("the mesh is closed" if self.closed else f"there is no node {index} in this mesh")
        if peer.dead is not None:
            raise peer.dead
        return peer

    def is_open(self, index: int) -> bool:
        """Whether the node's actors can be reached now."""
        return self._peers[index].is_open

    def may_route(self, index: int) -> bool:
        """Whether the node is there, or coming back."""
        return self._peers[index].dead is None

    def encode(self, parts: list[Any]) -> tuple[bytes, list[Frame]]:
        """An envelope as bytes and frames; CodecError if it can't be sent or is too large."""
        frames: list[Frame] = []
        data = self.codec.encode(parts, frames)
        size = len(data) + sum(frame.nbytes for frame in frames) if frames else len(data)
        if size > self.max_message:
            raise CodecError(f"a message of {size} bytes exceeds this mesh's limit of {self.max_message} bytes")
        return data, frames

    def send_encoded(self, index: int, data: bytes, frames: Sequence[Frame], *, system: bool, urgent: bool) -> None:
        """Send a request; it waits in the backlog while the peer's actors are not there yet."""
        peer = self._peers[index]
        link = peer.link
        if link is None or not (peer.is_open or system):
            peer.backlog.append((data, frames))
            return
        link.put(data, frames, now=urgent and self._last_inbound <= 1 and len(self.pending) <= 1)

    def send(self, index: int, parts: list[Any]) -> None:
        """Send a control message or an item to the peer's present incarnation, if there is one."""
        link = self._peers[index].link
        if link is not None:
            link.put(*self.encode(parts))

    def answer(self, index: int, ident: int, parts: list[Any]) -> None:
        """Send the last answer to a request; one that can't be encoded becomes an error that says so."""
        try:
            self.send(index, parts)
        except CodecError as error:
            self.send(index, [envelope.ERROR, ident, error])

    def flush(self) -> None:
        """Send what this loop turn has gathered."""
        self._flush_scheduled = False
        dirty, self._dirty = self._dirty, []
        for link in dirty:
            link.flush()

    def _schedule(self, link: Outbound) -> None:
        self._dirty.append(link)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self.flush)

    # Peers

    def connect(self, index: int, incarnation: int, url: str) -> None:
        """Link to a peer's incarnation; requests still wait until `open_peer`."""
        from tinker_actors.actors.link import Outbound

        peer = self._peers[index]
        if peer.link is not None and peer.incarnation == incarnation:
            return
        if peer.link is not None:
            self.peer_down(index, peer.incarnation, NodeDiedError(f"node {index} was replaced"))
        assert self._context is not None
        peer.incarnation = incarnation
        peer.identity = b"%d:%d" % (index, incarnation)
        peer.serving = Serving(self, index)
        own = b"%d:%d" % (self.index, self.incarnation)
        peer.link = Outbound(self._context, self.loop, url, own, self._schedule)
        self.send(index, [envelope.HELLO, self.mesh, self.index, self.incarnation, self.url])

    def open_peer(self, index: int) -> None:
        """Let requests to the peer through."""
        peer = self._peers[index]
        peer.is_open = True
        backlog, peer.backlog = peer.backlog, []
        for data, frames in backlog:
            if peer.link is not None:
                peer.link.put(data, frames)

    def peer_down(self, index: int, incarnation: int, error: Exception, *, final: bool = False) -> None:
        """A peer's incarnation ended: fail what waits for it. `final` if there will be no other."""
        peer = self._peers[index]
        if incarnation < peer.incarnation:
            return
        peer.incarnation = incarnation
        self._known.pop(peer.identity, None)
        peer.is_open = False
        peer.backlog.clear()
        if final:
            peer.dead = error
        if peer.link is not None:
            peer.link.close()
            peer.link = None
        for ident in [key for key, pending in self.pending.items() if pending.target.address.node == index]:
            self.pending.pop(ident).reject(error)
        for target in [target for target in self.busy if target.address.node == index]:
            self.busy.discard(target)
            self.dead_letters += target.reset(error)
        peer.serving.close()

    # Receiving

    def _receive(self, identity: bytes, data: bytes, frames: Sequence[Frame]) -> None:
        try:
            batch: list[Any] = envelope.split(self.codec, data, frames)
        except CodecError:
            try:
                batch = envelope.salvage(self.codec, data, frames)
            except CodecError as error:
                self._bad(identity, error)
                return
        self._last_inbound = len(batch)
        for parts in batch:
            try:
                self._dispatch(identity, parts)
            except Exception as error:  # the boundary around bytes from elsewhere: a bad message is dropped
                self._bad(identity, error)

    def _dispatch(self, identity: bytes, parts: Any) -> None:
        error: CodecError | None = None
        if isinstance(parts, envelope.Unreadable):
            parts, error = parts.head, parts.error
        if not envelope.is_well_formed(parts):
            raise error or CodecError("a malformed envelope")
        peer = self._known.get(identity)
        if peer is None:
            self._hello(identity, parts)
            return
        kind = parts[0]
        if error is not None:
            self._unreadable(peer, parts, error)
            return
        if kind == envelope.REPLY or kind == envelope.END:
            self._settle(parts[1], parts[2] if kind == envelope.REPLY else None, None)
        elif kind == envelope.ASK or kind == envelope.STREAM:
            peer.serving.ask(parts)
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
            target = self._targets.get(parts[1])
            if target is not None:
                target.release(parts[2], 0)
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
        pending.target.release(1, pending.size)

    def _unreadable(self, peer: Peer, parts: list[Any], error: CodecError) -> None:
        """An envelope whose head can be read, but not its body: whoever waits for it hears why."""
        kind, ident = parts[0], parts[1]
        if kind in (envelope.ASK, envelope.STREAM):
            self.send(peer.index, [envelope.ERROR, ident, error])
        elif kind in (envelope.REPLY, envelope.ERROR):
            self._settle(ident, None, error)
        elif kind == envelope.ITEM:
            pending = self.pending.get(ident)
            if pending is not None:
                pending.target.cancel(pending)
                pending.reject(error)
        elif kind == envelope.TELL:
            peer.serving.ack(ident)
        self._bad(peer.identity, error)

    def _hello(self, identity: bytes, parts: list[Any]) -> None:
        token, index, incarnation, url = parts[1:] if parts[0] == envelope.HELLO else ("", -1, -1, "")
        peer = self._peers.get(index)
        if token != self.mesh or peer is None or identity != b"%d:%d" % (index, incarnation):
            raise CodecError(f"a message from {identity!r}, which has not said hello")
        if incarnation < peer.incarnation or peer.dead is not None:
            return
        if self.greeted is not None and not self.greeted(index, incarnation, url):
            return
        self.connect(index, incarnation, url)
        self._known[identity] = peer

    def _from_directory(self, parts: list[Any]) -> None:
        if parts[0] == envelope.PEER:
            _, index, incarnation, url, error, final = parts
            if url is not None:
                self.connect(index, incarnation, url)
                self.open_peer(index)
            else:
                self.peer_down(index, incarnation, error, final=final)
        elif parts[0] == envelope.NAME:
            _, name, ref = parts
            if ref is None:
                self.names.pop(name, None)
            else:
                self.names[name] = ref

    def _bad(self, identity: bytes, error: Exception) -> None:
        self.bad_messages += 1
        logger.warning("a message from %r was dropped: %s: %s", identity, type(error).__name__, error)
