"""The mesh's own actors: the directory as node 0 offers it, and the agent that carries out its orders on a child."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import location
from tinker_actors.actors.actor import Actor, concurrent
from tinker_actors.actors.control import CellSpec, Report, SpawnRequest
from tinker_actors.actors.directory import Directory, make_cell
from tinker_actors.actors.errors import ActorStoppedError, CodecError, DeadlineExceeded, SpawnError
from tinker_actors.actors.lifecycle import Lifecycle
from tinker_actors.actors.node import Node
from tinker_actors.actors.ref import ActorRef
from tinker_actors.actors.restart import RestartHistory
from tinker_actors.actors.survey import Survey
from tinker_actors.actors.view import Order
from tinker_actors.errors import ActorError

if TYPE_CHECKING:
    from tinker_actors.actors.dead_letters import Lost
    from tinker_actors.actors.events import Event

SYSTEM_MAILBOX = 1 << 20
RECENT = 1024  # spawns that can still be given up after they have been answered


class DirectoryActor(Actor):
    """The directory's messages, for the child nodes."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._spawned: OrderedDict[tuple[int, int, int], ActorRef] = OrderedDict()

    @concurrent
    async def spawn(self, request: SpawnRequest) -> ActorRef:
        """Start an actor somewhere."""
        order = Order(
            name=request.name,
            node=request.node,
            mailbox=request.mailbox,
            policy=request.policy,
            parent=request.parent,
        )
        ref = await self._directory.spawn_by_location(request.location, request.arguments, order)
        self._spawned[request.token] = ref
        if len(self._spawned) > RECENT:
            self._spawned.popitem(last=False)
        return ref

    @concurrent
    async def give_up(self, token: tuple[int, int, int]) -> None:
        """Whoever asked for a spawn was cancelled, perhaps after it was answered: nobody has that actor's ref."""
        ref = self._spawned.pop(token, None)
        if ref is not None:
            await self._directory.stop(ref, drain=False, timeout=None)

    @concurrent
    async def stop(self, ref: ActorRef, drain: bool, timeout: float | None) -> None:
        """End an actor."""
        await self._directory.stop(ref, drain=drain, timeout=timeout)

    @concurrent
    async def stop_children(self, parent: int) -> None:
        """End what an actor spawned."""
        await self._directory.stop_children(parent)

    @concurrent
    async def watch(self, ref: ActorRef) -> AsyncIterator[Event]:
        """An actor's events."""
        async for event in self._directory.watch(ref):
            yield event

    @concurrent
    async def failed(self, ident: int, incarnation: int, why: str) -> None:
        """Take an actor's siblings down with it."""
        await self._directory.failed(ident, incarnation, why)

    async def report(self, report: Report) -> None:
        """What became of an actor on the sender's node."""
        self._directory.report(report)


class RemoteDirectory:
    """A child node's way to the directory; also the supervisor of that node's actors."""

    def __init__(self, node: Node, directory: ActorRef) -> None:
        self._node = node
        self._directory: Any = directory
        self._next = itertools.count().__next__

    async def spawn(self, cls: type[Actor], args: tuple[Any, ...], kwargs: Mapping[str, Any], order: Order) -> ActorRef:
        """Start an actor somewhere."""
        request = SpawnRequest(
            location=location.locate(cls),
            arguments=self._node.codec.encode([list(args), dict(kwargs)]),
            name=order.name,
            node=order.node,
            mailbox=order.mailbox,
            policy=order.policy,
            parent=order.parent,
            token=(self._node.index, self._node.incarnation, self._next()),
        )
        try:
            return await self._directory.spawn(request)
        except (asyncio.CancelledError, DeadlineExceeded):
            with contextlib.suppress(ActorError):
                self._directory.tell.give_up(request.token)
            raise

    async def stop(self, ref: ActorRef, *, drain: bool, timeout: float | None) -> None:
        """End an actor."""
        await self._directory.stop(ref, drain, timeout)

    def watch(self, ref: ActorRef) -> AsyncIterator[Event]:
        """An actor's events; asked for at once, so that none is missed from here on."""
        return self._directory.stream.watch(ref).open()

    def report(self, report: Report) -> None:
        """Tell the directory."""
        self._directory.tell.report(report)

    async def failed(self, ident: int, incarnation: int, why: str) -> None:
        """Take the siblings of an actor of this node down with it."""
        await self._directory.failed(ident, incarnation, why)

    async def stop_children(self, parent: int) -> None:
        """End what an actor of this node spawned."""
        await self._directory.stop_children(parent)


class NodeAgent(Actor):
    """Starts and ends actors on a child node, as the directory orders."""

    def __init__(self, node: Node, registry: RemoteDirectory, leave: Callable[[], None]) -> None:
        self._node = node
        self._registry = registry
        self._leave = leave

    @concurrent
    async def prepare(self, specs: list[CellSpec]) -> None:
        """Make the mailboxes of actors that come back, before any of them starts: they may hold each other's refs."""
        for spec in specs:
            with contextlib.suppress(SpawnError):  # `start` will say so again, to whom it concerns
                self._cell(spec)

    @concurrent
    async def start(self, spec: CellSpec, arguments: bytes) -> None:
        """Construct and start an actor."""
        cell = self._node.cells.get(spec.address.id) or self._cell(spec)
        now = self._node.loop.time()
        history = RestartHistory(spec.policy, tuple(now - age for age in spec.restart_ages))
        try:
            args, kwargs = self._node.codec.decode(arguments)
        except CodecError as error:
            Lifecycle(self._node, cell, (), {}, history).discard(error)
            raise
        life = Lifecycle(self._node, cell, tuple(args), kwargs, history, spec.incarnation)
        await life.start()

    @concurrent
    async def stop(self, ident: int, drain: bool, timeout: float | None) -> None:
        """End an actor."""
        cell = self._node.cells.get(ident)
        if cell is None:
            return
        if not hasattr(cell, "life"):
            raise ActorStoppedError(f"actor {cell.name} is only about to start")
        await cell.life.stop(drain=drain, timeout=timeout)

    @concurrent
    async def fail(self, ident: int, error: Exception) -> None:
        """Make an actor fail, for a child of its that failed too often."""
        cell = self._node.cells.get(ident)
        if cell is not None:
            cell.fail(error)

    @concurrent
    async def fail_with_sibling(self, ident: int, error: Exception) -> int | None:
        """Make an actor fail because another with the same parent did; the number of the incarnation that did."""
        cell = self._node.cells.get(ident)
        return cell.life.fail_with_sibling(error) if cell is not None and hasattr(cell, "life") else None

    @concurrent
    async def survey(self) -> Survey:
        """What there is to say of this node and its actors now."""
        return await self._node.surveyor.look()

    @concurrent
    async def letters(self) -> dict[Lost, int]:
        """How many dead letters there were on this node, by cause."""
        return self._node.letters.by_cause

    @concurrent
    async def leave(self) -> None:
        """The process may end once this is answered."""
        self._leave()

    def _cell(self, spec: CellSpec) -> Any:
        return make_cell(self._node, self._registry, location.find(spec.location), spec.address)
