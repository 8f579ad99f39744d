"""Node 0's register of every actor of the mesh: names, parents, restarts, watchers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tinker_actors.actors import envelope, location
from tinker_actors.actors.actor import Actor
from tinker_actors.actors.cell import Cell
from tinker_actors.actors.control import SYSTEM_IDS, CellRestarted, CellSpec, ClassLocation, Report
from tinker_actors.actors.errors import (
    ActorDiedError,
    ActorStoppedError,
    DeadlineExceeded,
    MailboxFull,
    NodeDiedError,
    SpawnError,
)
from tinker_actors.actors.events import Restarted, Terminated
from tinker_actors.actors.failures import portable
from tinker_actors.actors.lifecycle import Lifecycle
from tinker_actors.actors.node import ENDED, Node
from tinker_actors.actors.ref import ActorRef, Address
from tinker_actors.actors.restart import Restart, RestartHistory, RestartPolicy, Strategy
from tinker_actors.actors.siblings import Families
from tinker_actors.actors.view import MeshView, Order
from tinker_actors.actors.watching import Listener, Watch

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Entry:
    """One living actor."""

    ref: ActorRef
    policy: RestartPolicy
    parent: int | None
    history: RestartHistory
    name: str | None  # the name it was given; None if the mesh made one up
    location: ClassLocation | None = None  # None on node 0
    arguments: bytes = b""
    incarnation: int = 1
    fallen: int = 0  # the last incarnation that failed, by itself or with a sibling
    started: bool = False
    children: set[int] = field(default_factory=set[int])
    watches: weakref.WeakSet[Listener] | None = None  # made for the first: most actors have none

    @property
    def listeners(self) -> list[Listener]:
        """Who hears of its events."""
        return [] if self.watches is None else list(self.watches)


class Directory:
    """Starts, finds, watches and stops actors on every node; the supervisor of node 0's own."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.agents: dict[int, ActorRef] = {}
        self.entries: dict[int, Entry] = {}
        self._reasons: OrderedDict[int, BaseException | None] = OrderedDict()
        self._taken: set[str] = set()
        # Where meshes share a process, the ids in a chain of callers must not mean actors of several.
        self._next_id = itertools.count(SYSTEM_IDS + random.SystemRandom().getrandbits(31)).__next__
        self._next_number = itertools.count(1).__next__
        self._next_node = itertools.count().__next__
        self._tasks: set[asyncio.Task[None]] = set()
        self.families = Families(self)
        self.unattended: Callable[[Entry, BaseException], None] | None = None  # told of failures that nobody else is
        self.closing = False

    # Spawning

    async def spawn(self, cls: type[Actor], args: tuple[Any, ...], kwargs: Mapping[str, Any], order: Order) -> ActorRef:
        """Start an actor of a class that is loaded here."""
        index = self.place(order.node)
        if index == 0:
            return await self._spawn_here(cls, args, kwargs, order)
        where = location.locate(cls)
        arguments = self.node.codec.encode([list(args), dict(kwargs)])
        return await self._spawn_there(where, arguments, replace(order, node=index))

    async def spawn_by_location(self, where: ClassLocation, arguments: bytes, order: Order) -> ActorRef:
        """Start an actor that a child node asks for."""
        index = self.place(order.node)
        if index:
            return await self._spawn_there(where, arguments, replace(order, node=index))
        args, kwargs = self.node.codec.decode(arguments)
        return await self._spawn_here(location.find(where), tuple(args), kwargs, order)

    def place(self, node: int | None) -> int:
        """The node for an actor: the one that is named, else the next child in turn, else this one."""
        if self.closing:
            raise SpawnError("the mesh is closing")
        if node is None:
            alive = [index for index in range(1, self.node.count) if self.node.exchange.may_route(index)]
            return alive[self._next_node() % len(alive)] if alive else 0
        if not 0 <= node < self.node.count:
            raise SpawnError(f"node must be one of 0 to {self.node.count - 1}, got {node}")
        return node

    def _enter(self, kind: str, index: int, order: Order) -> Entry:
        if order.parent is not None and order.parent not in self.entries:
            raise SpawnError(f"a {kind} can't be spawned: the actor that was to be its parent has ended")
        ident = self._next_id()
        name = order.name or f"{kind}-{self._next_number()}"
        while not order.name and name in self._taken:
            name = f"{kind}-{self._next_number()}"
        if name in self._taken:
            raise SpawnError(f"the name {name!r} is taken by another actor of this mesh")
        address = Address(mesh=self.node.mesh, id=ident, node=index, name=name, kind=kind, mailbox=order.mailbox)
        ref = self.node.ref(address) if index else ActorRef(address, _NotYet())
        entry = Entry(ref, order.policy, order.parent, RestartHistory(order.policy), order.name)
        self.entries[ident] = entry
        parent = self.entries.get(order.parent) if order.parent is not None else None
        if parent is not None:
            parent.children.add(ident)
        if order.name:
            self._taken.add(name)
        return entry

    async def _spawn_here(
        self, cls: type[Actor], args: tuple[Any, ...], kwargs: Mapping[str, Any], order: Order
    ) -> ActorRef:
        entry = self._enter(cls.__name__, 0, order)
        cell = make_cell(self.node, self, cls, entry.ref.address)
        entry.ref = cell.ref
        life = Lifecycle(self.node, cell, args, kwargs, entry.history)
        try:
            await life.start()
        except Exception as error:  # a constructor's: it arrives as from another process
            arrives = portable(error)
            if arrives is error:
                raise
            raise arrives from error
        self._started(entry)
        return entry.ref

    async def _spawn_there(self, where: ClassLocation, arguments: bytes, order: Order) -> ActorRef:
        assert order.node is not None
        entry = self._enter(where.qualname.rpartition(".")[2], order.node, order)
        entry.location, entry.arguments = where, arguments
        try:
            await self._agent(order.node).start(self._spec(entry), arguments)
        except BaseException as error:  # a cancelled spawn too leaves no entry
            self.forget(entry, error if isinstance(error, Exception) else None)
            if isinstance(error, asyncio.CancelledError | DeadlineExceeded):  # it may have started all the same
                self.background(self._agent(order.node).stop(entry.ref.address.id, False, None))
            raise
        self._started(entry)
        return entry.ref

    def _started(self, entry: Entry) -> None:
        entry.started = True
        if entry.name:
            self.node.names[entry.name] = entry.ref
            self.tell_nodes([envelope.NAME, entry.name, entry.ref])

    def _spec(self, entry: Entry) -> CellSpec:
        assert entry.location is not None
        return CellSpec(
            address=entry.ref.address,
            location=entry.location,
            policy=entry.policy,
            incarnation=entry.incarnation,
            restart_ages=entry.history.ages(self.node.loop.time()),
        )

    def _agent(self, index: int) -> Any:
        return self.agents[index]

    # Ending

    async def stop(self, ref: ActorRef, *, drain: bool, timeout: float | None) -> None:
        """End an actor; one that has ended already is fine."""
        address = ref.address
        while address.node and (entry := self.entries.get(address.id)) is not None:
            if self.closing and not self.node.exchange.is_open(address.node):
                self.forget(entry, None)
                return
            try:
                await self._agent(address.node).stop(address.id, drain, timeout)
                return
            except NodeDiedError:
                continue  # it has ended with its node, or comes back with it and is to be stopped then
        cell = self.node.cells.get(address.id)
        if cell is not None and address.id in self.entries:
            await cell.life.stop(drain=drain, timeout=timeout)

    async def stop_children(self, parent: int) -> None:
        """End every actor that `parent` spawned, at once, without waiting for what their mailboxes hold."""
        entry = self.entries.get(parent)
        children = [self.entries[child] for child in entry.children if child in self.entries] if entry else []
        if children:
            await asyncio.gather(
                *(self.stop(child.ref, drain=False, timeout=None) for child in children), return_exceptions=True
            )

    async def failed(self, ident: int, incarnation: int, why: str) -> None:
        """An actor failed whose siblings fail with it; returns once they know."""
        entry = self.entries.get(ident)
        if entry is not None:
            await self.families.failed(entry, incarnation, why)

    def report(self, report: Report) -> None:
        """What a node says of one of its actors."""
        entry = self.entries.get(report.id)
        if entry is None:
            return
        if isinstance(report, CellRestarted):
            entry.incarnation = report.incarnation
            if entry.ref.address.node:
                entry.history.record(self.node.loop.time())
            event = Restarted(ref=entry.ref, incarnation=report.incarnation, reason=report.reason)
            for watch in entry.listeners:
                watch.put(event)
        else:
            self.forget(entry, report.reason)

    def forget(self, entry: Entry, reason: BaseException | None) -> None:
        """Remove an actor that has ended: free its name, tell its watchers, escalate to its parent."""
        ident = entry.ref.address.id
        if self.entries.pop(ident, None) is None:
            return
        self.families.forget(ident)
        self._reasons[ident] = reason
        if len(self._reasons) > ENDED:
            self._reasons.popitem(last=False)
        if entry.name:
            self._taken.discard(entry.name)
            if self.node.names.pop(entry.name, None) is not None:
                self.tell_nodes([envelope.NAME, entry.name, None])
        parent = self.entries.get(entry.parent) if entry.parent is not None else None
        if parent is not None:
            parent.children.discard(entry.ref.address.id)
        for child in [self.entries[child] for child in entry.children if child in self.entries]:
            self.background(self.stop(child.ref, drain=False, timeout=None))
        event = Terminated(ref=entry.ref, reason=reason)
        for watch in entry.listeners:
            watch.put(event)
        if reason is not None and entry.started and not self.closing:
            logger.error("actor %s ended: %s: %s", entry.ref.address.name, type(reason).__name__, reason)
            escalates = parent is not None and entry.policy.mode is not Restart.NEVER
            if self.unattended is not None and not escalates and not entry.listeners:
                self.unattended(entry, reason)
            if parent is not None and escalates:
                error = ActorDiedError(f"child {entry.ref.address.name} failed beyond its restart policy: {reason}")
                error.__cause__ = reason
                self.background(self._fail(parent, error))

    async def _fail(self, entry: Entry, error: Exception) -> None:
        address = entry.ref.address
        if address.node:
            await self._agent(address.node).fail(address.id, error)
        elif (cell := self.node.cells.get(address.id)) is not None:
            cell.fail(error)

    # Watching

    def watch(self, ref: ActorRef) -> Watch:
        """The actor's events from now on; of one that has ended, `Terminated` at once."""
        watch = Watch()
        self.listen(ref, watch)
        return watch

    def listen(self, ref: ActorRef, listener: Listener) -> None:
        """Tell `listener`, which is held weakly, of the actor's events."""
        entry = self.entries.get(ref.address.id)
        if entry is not None:
            if entry.watches is None:
                entry.watches = weakref.WeakSet()
            entry.watches.add(listener)
        else:
            listener.put(Terminated(ref=ref, reason=self._reasons.get(ref.address.id)))

    def unlisten(self, ref: ActorRef, listener: Listener) -> None:
        """Tell it no more."""
        entry = self.entries.get(ref.address.id)
        if entry is not None and entry.watches is not None:
            entry.watches.discard(listener)

    # Nodes

    def node_lost(self, index: int, error: Exception) -> list[Entry]:
        """End a dead node's actors; returns those that its next incarnation is to start again."""
        now = self.node.loop.time()
        lost = [entry for entry in self.entries.values() if entry.ref.address.node == index]
        revived: list[Entry] = []
        for entry in lost:
            for child in [self.entries[ident] for ident in entry.children if ident in self.entries]:
                if child.ref.address.node != index:
                    self.background(self.stop(child.ref, drain=False, timeout=None))
        gone = {entry.ref.address.id for entry in lost}
        for entry in lost:
            if entry.parent in gone or not entry.started or entry.history.next_delay(now, failed=True) is None:
                self.forget(entry, error)
            else:
                revived.append(entry)
                for watch in entry.listeners:
                    watch.lost(entry.ref, error)
                if entry.policy.strategy is Strategy.ALL_FOR_ONE:
                    self.background(self.families.failed(entry, entry.incarnation, str(error.args[0])))
        return revived

    async def revive(self, index: int, entries: list[Entry], reason: Exception) -> None:
        """Start actors again on the new incarnation of their node, under their old refs.

        Raises:
            NodeDiedError: that incarnation is gone too.
        """
        entries = [entry for entry in entries if entry.ref.address.id in self.entries]
        for entry in entries:
            entry.incarnation += 1
        agent = self._agent(index)
        await agent.prepare([self._spec(entry) for entry in entries])
        for entry in entries:
            try:
                await agent.start(self._spec(entry), entry.arguments)
            except ActorStoppedError:
                continue
            except Exception as error:  # the constructor's or on_start's own; this actor ends, the others go on
                if not self.node.exchange.is_linked(index):
                    raise
                self.forget(entry, error)
                continue
            event = Restarted(ref=entry.ref, incarnation=entry.incarnation, reason=reason)
            for watch in entry.listeners:
                watch.put(event)

    def tell_nodes(self, parts: list[Any], *, besides: int = 0) -> None:
        """Send a control envelope to every child node that is up."""
        for index in self.agents:
            if index != besides:
                self.node.exchange.send(index, parts)

    async def close(self, timeout: float) -> None:
        """Stop every actor on every node, those of later spawns not waiting for earlier ones."""
        self.closing = True
        entries = [entry for entry in reversed(self.entries.values()) if entry.parent not in self.entries]
        results = await asyncio.gather(
            *(self.stop(entry.ref, drain=True, timeout=timeout) for entry in entries), return_exceptions=True
        )
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, ActorStoppedError | MailboxFull):
                logger.debug("an actor could not be stopped: %r", result)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def background(self, work: Any) -> None:
        """Run `work` beside everything else, without the caller's deadline."""
        task: asyncio.Task[None] = self.node.loop.create_task(work, context=self.node.context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.debug("work beside the actors failed: %r", task.exception())


class _NotYet:
    """Stands in an address's place for the moment until its cell exists."""

    asks: Any
    tell: Any
    stream: Any


def make_cell(node: Node, registry: Any, cls: type[Actor], address: Address) -> Cell:
    """A cell on this node, not started yet; it takes messages already."""
    cell = Cell(node, cls, address)
    cell.view = MeshView(registry, node, cell)
    node.cells[address.id] = cell
    return cell
