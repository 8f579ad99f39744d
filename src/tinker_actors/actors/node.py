"""One process of a mesh: its actors, and how refs mean them or others."""

from __future__ import annotations

import asyncio
import contextvars
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from tinker_actors.actors import arena, traceparent
from tinker_actors.actors.cell import Cell
from tinker_actors.actors.codec import Codec
from tinker_actors.actors.control import SYSTEM_IDS, CellEnded, CellRestarted, Report
from tinker_actors.actors.cycles import CycleFinder
from tinker_actors.actors.dead_letters import DeadLetters
from tinker_actors.actors.deadlines import CoarseTimer
from tinker_actors.actors.errors import ActorDiedError, CodecError
from tinker_actors.actors.exchange import Exchange
from tinker_actors.actors.inline import Turn
from tinker_actors.actors.pulse import Pulse, Thresholds
from tinker_actors.actors.ref import ActorRef, Address, Options, Target, positional
from tinker_actors.actors.remote import RemoteTarget
from tinker_actors.actors.survey import Surveyor
from tinker_actors.errors import ActorError

if TYPE_CHECKING:
    from tinker_actors.actors.barrier_site import BarrierSite
    from tinker_actors.actors.message import Message

ENDED = 4096  # actors whose end a node remembers, to say how they ended
MAX_MESSAGE = 512 * 1024 * 1024  # bytes of one message and its frames
_nodes: weakref.WeakSet[Node] = weakref.WeakSet()
"""All of this process, for a process that is forked from it."""


class Supervisor(Protocol):
    """Who hears what becomes of this node's actors."""

    def report(self, report: Report) -> None:
        """An actor was restarted or ended."""
        ...

    async def failed(self, ident: int, incarnation: int, why: str) -> None:
        """Take an actor's siblings down with it."""
        ...

    async def stop_children(self, parent: int) -> None:
        """End every actor that `parent` spawned, wherever it is."""
        ...


class Gone:
    """The target of a ref whose actor is no longer on this node."""

    def __init__(self, node: Node, address: Address) -> None:
        self.node = node
        self._address = address

    def refusal(self) -> ActorError:
        """Why the actor takes no messages."""
        return self.node.refusal(self._address.id)

    def _refuse(self) -> NoReturn:
        raise self.refusal()

    def asks(self, options: Options, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        """What sends asks; see `ask`."""
        return positional(self.ask, options, method)

    async def ask(self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Refuse."""
        self._refuse()

    def tell(self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Count a dead letter."""
        self.node.letters.add(f"{self._address.name}.{method}", self.refusal())

    async def stream(self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Refuse at the first item."""
        self._refuse()
        yield


class Node:
    """See the module. `count` nodes have the indices 0 to `count - 1`; this one is `index`."""

    def __init__(
        self,
        *,
        mesh: str,
        index: int,
        incarnation: int,
        count: int,
        max_message: int = MAX_MESSAGE,
        shared_memory: int = arena.LIMIT,
        busy_poll: float | None = None,
        thresholds: Thresholds | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = self.loop.time
        self.timer = CoarseTimer(self.loop)
        self.context = contextvars.copy_context()
        self.turn = Turn()
        self.mesh = mesh
        self.index = index
        self.incarnation = incarnation
        self.count = count
        self.codec = Codec(self)
        self.cells: dict[int, Cell] = {}
        self.names: dict[str, ActorRef] = {}
        self._ended: OrderedDict[int, Cell] = OrderedDict()
        self.letters = DeadLetters(self.loop)
        self.closed = False
        self.supervisor: Supervisor | None = None
        self.barrier_sites: weakref.WeakValueDictionary[int, BarrierSite] = weakref.WeakValueDictionary()
        self.exchange = Exchange(self, max_message=max_message, shared_memory=shared_memory, busy_poll=busy_poll)
        traceparent.find_library()
        self.thresholds = thresholds or Thresholds()
        self.pulse = Pulse(self, self.thresholds)
        self.cycles = CycleFinder(self, self.thresholds.ask_cycle)
        self.surveyor = Surveyor(self)
        self._targets: weakref.WeakValueDictionary[int, RemoteTarget] = weakref.WeakValueDictionary()
        _nodes.add(self)

    def close(self, linger: int = 0) -> None:
        """Close every socket and fail everything that still waits; what was sent may leave for `linger` ms."""
        self.closed = True
        self.pulse.close()
        self.cycles.close()
        self.exchange.close(linger)
        self.letters.close()
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

    def known_target(self, ident: int) -> RemoteTarget | None:
        """The target that refs of this process to an actor share, if there are any."""
        return self._targets.get(ident)

    # The host of its cells

    @property
    def dead_letters(self) -> int:
        """Tells that failed or were not served."""
        return self.letters.total

    def dead_letter(self, message: Message, error: BaseException, *, begun: bool = False) -> None:
        """Count and log a tell that was not served, or whose handler raised (`begun`)."""
        self.letters.add(message.method, error, begun=begun)

    def idle(self) -> None:
        """An actor has nothing to do: what it wrote can go out."""
        self.exchange.idle()

    def restarted(self, cell: Cell, incarnation: int, reason: BaseException | None) -> None:
        """Report a new incarnation."""
        if self.supervisor is not None:
            self.supervisor.report(CellRestarted(id=cell.id, incarnation=incarnation, reason=reason))

    async def failed(self, cell: Cell, incarnation: int, why: str) -> None:
        """Let the siblings of an actor that failed fail with it."""
        if self.supervisor is not None:
            await self.supervisor.failed(cell.id, incarnation, why)

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


def _abandon_all() -> None:
    """In a forked process ZeroMQ's threads are missing: what is sent would go nowhere, without a word."""
    for node in _nodes:
        node.closed = True
        node.exchange.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
