"""The nodes of other hosts, as node 0 sees them: they join, may be cut off for a while, come back, or are given up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from tinker_actors.actors import location, packing
from tinker_actors.actors.actor import concurrent
from tinker_actors.actors.agent import SYSTEM_MAILBOX, DirectoryActor
from tinker_actors.actors.checks import LONGEST_NAME
from tinker_actors.actors.control import SYSTEM_IDS, CellRestarted, Report, SpawnRequest
from tinker_actors.actors.directory import Entry, make_cell
from tinker_actors.actors.errors import CodecError, NodeDiedError, NodeUnreachableError, SpawnError
from tinker_actors.actors.guest_serving import desk_id
from tinker_actors.actors.lifecycle import Lifecycle
from tinker_actors.actors.ref import ActorRef, Address
from tinker_actors.actors.restart import RestartHistory, RestartPolicy
from tinker_actors.actors.roster import Member, Roster
from tinker_actors.actors.worker import system_address
from tinker_actors.errors import ActorError

if TYPE_CHECKING:
    from tinker_actors.actors.directory import Directory
    from tinker_actors.actors.imports import Imports
    from tinker_actors.actors.network import Network
    from tinker_actors.actors.node import Node

logger = logging.getLogger(__name__)

VERSION = 1  # of what nodes say to each other
ENTER = 15.0  # seconds for a node that was let in to come
LEAVE = 1.0  # seconds for all guests to close in order at the end
MAX_GUESTS = 1024


class Guest:
    """One node of another host over its incarnations."""

    def __init__(self, index: int, name: str, key: str | None) -> None:
        self.name = name
        self.member = Member(index, key=key, is_guest=True)
        self.has_entered = False
        self.is_leaving = False
        self.revived: list[Entry] = []
        self.reason: Exception = NodeDiedError()
        self.deadline: asyncio.TimerHandle | None = None  # when it is given up
        self.gone: asyncio.Future[None] | None = None


def desk_address(mesh: str, index: int) -> Address:
    """The address of guest `index`'s way to the directory."""
    return Address(mesh=mesh, id=desk_id(index), node=0, name=f"desk-{index}", kind="Desk", mailbox=SYSTEM_MAILBOX)


class Guests:
    """See the module. `patience` is the seconds that a cut link has to heal before its node is given up."""

    def __init__(
        self,
        node: Node,
        directory: Directory,
        roster: Roster,
        network: Network,
        *,
        imports: Imports,
        patience: float,
        stop_timeout: float,
    ) -> None:
        self._node = node
        self.directory = directory
        self._roster = roster
        self._network = network
        self._imports = imports
        self._patience = patience
        self._stop_timeout = stop_timeout
        self._guests: dict[int, Guest] = {}
        self._changed = asyncio.Event()
        self._closing = False
        network.joined = self._joined
        network.linked = self._linked

    async def wait_for(self, count: int) -> None:
        """Wait until `count` nodes of all hosts are up."""
        while 1 + sum(member.is_up for member in self._roster.members.values()) < count:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Tell the guests that the mesh has ended."""
        self._closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE):
                await asyncio.gather(*(self._dismiss(guest) for guest in list(self._guests.values())))
        for guest in self._guests.values():
            if guest.deadline is not None:
                guest.deadline.cancel()

    async def _dismiss(self, guest: Guest) -> None:
        if not guest.member.is_up:
            return
        agent: Any = self.directory.agents[guest.member.index]
        guest.gone = self._node.loop.create_future()
        peer = self._node.exchange.find_peer(guest.member.index)
        if peer is not None:
            peer.is_announced = False  # that its link ends is no surprise
        with contextlib.suppress(ActorError):
            await agent.leave()
            await guest.gone

    # Joining

    def _joined(self, data: bytes) -> bytes:
        """Answer a stranger's request to join: [1, what it needs to know] or [0, why not]."""
        try:
            return packing.pack([1, self._admit(data)])
        except (ActorError, ValueError, TypeError) as error:
            logger.warning("a node was not let in: %s", error)
            return packing.pack([0, str(error)])

    def _admit(self, data: bytes) -> list[Any]:
        version, name, key = packing.unpack(data, _no_extension)
        if version != VERSION:
            raise SpawnError(f"this mesh speaks version {VERSION}, the node version {version}; update the older one")
        if self._closing or self.directory.closing:
            raise SpawnError("the mesh is closing")
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise SpawnError(f"a node's name has 1 to {LONGEST_NAME} characters, got {name!r:.300}")
        keys = self._network.keys
        if keys is not None and key not in keys.allowed:
            raise SpawnError(f"the key {key} is not allowed")
        guest = next((guest for guest in self._guests.values() if guest.name == name), None)
        if guest is None:
            guest = self._new(name, key)
        elif guest.is_leaving:
            raise SpawnError(f"a node named {name!r} is about to leave the mesh; its name is free when it has")
        elif guest.member.is_up and self._node.exchange.is_linked(guest.member.index):
            raise SpawnError(f"a node named {name!r} is in the mesh already")
        else:
            self._replace(guest, key)
        member = guest.member
        member.incarnation += 1
        guest.has_entered = False
        self._await(guest, ENTER)
        self._network.expected[member.index] = (member.incarnation, key)
        node = self._node
        index, size, grace = member.index, node.exchange.max_message, node.thresholds.ask_cycle
        return [node.mesh, index, member.incarnation, size, self._network.ping, grace]

    def _new(self, name: str, key: str | None) -> Guest:
        if len(self._guests) >= MAX_GUESTS:
            raise SpawnError(f"the mesh has {MAX_GUESTS} nodes of other hosts already")
        index = self._node.count
        if desk_id(index) >= SYSTEM_IDS:
            raise SpawnError("the mesh has seen too many nodes; start it again")
        guest = self._guests[index] = Guest(index, name, key)
        self._node.exchange.add_peer(index)
        self._roster.members[index] = guest.member
        self.directory.agents[index] = self._node.ref(system_address(self._node.mesh, index))
        desk = make_cell(self._node, self.directory, Desk, desk_address(self._node.mesh, index))
        life = Lifecycle(self._node, desk, (self, guest), {}, RestartHistory(RestartPolicy.never()))
        self.directory.background(life.start())
        return guest

    def _replace(self, guest: Guest, key: str | None) -> None:
        """A guest that was cut off came again under its name: its former self is gone."""
        error = NodeDiedError(f"node {guest.member.index} ({guest.name}) was started again")
        self._roster.down(guest.member, error, final=False)
        guest.revived = self.directory.node_lost(guest.member.index, error)
        guest.reason = error
        guest.member.key = key

    async def enter(self, guest: Guest, living: list[list[int]]) -> tuple[list[str], list[int]]:
        """A guest's link stands, for the first time or again; `living` are its actors and their incarnations.

        Returns the names that are in use, and those of its actors that nobody knows any more.
        """
        self._forgive(guest)
        member = guest.member
        peer = self._node.exchange.find_peer(member.index)
        member.network = None if peer is None or peer.wire is None else peer.wire.url
        self._roster.introduce(member)
        if guest.has_entered:
            self._reconcile(member.index, living)
        guest.has_entered = True
        if guest.revived:
            self.directory.background(self._revive(guest))
        else:
            self._announce(guest)
        unknown = [ident for ident, _ in living if ident not in self.directory.entries]
        return list(self._node.names), unknown

    def _announce(self, guest: Guest) -> None:
        self._roster.announce(guest.member)
        self._changed.set()

    async def _revive(self, guest: Guest) -> None:
        entries, guest.revived = guest.revived, []
        try:
            await self.directory.revive(guest.member.index, entries, guest.reason)
        except (NodeDiedError, NodeUnreachableError) as error:
            for entry in entries:
                self.directory.forget(entry, error)
            return
        self._announce(guest)

    def _reconcile(self, index: int, living: list[list[int]]) -> None:
        """What became of a guest's actors while it could not say so."""
        incarnations = dict(cast(list[tuple[int, int]], living))
        error = NodeUnreachableError(f"it ended while node {index} could not be reached")
        for entry in list(self.directory.entries.values()):
            address = entry.ref.address
            if address.node != index or not entry.started:
                continue
            incarnation = incarnations.get(address.id)
            if incarnation is None:
                self.directory.background(self.directory.stop_children(address.id))
                self.directory.forget(entry, error)
            elif incarnation > entry.incarnation:
                self.directory.report(CellRestarted(id=address.id, incarnation=incarnation, reason=None))

    # Links

    def _linked(self, index: int, up: bool) -> None:
        guest = self._guests.get(index)
        if guest is None:
            return
        if guest.gone is not None and not up:
            if not guest.gone.done():
                guest.gone.set_result(None)
        elif guest.is_leaving and not up:
            self._lost(guest, f"node {index} ({guest.name}) left the mesh")
        elif up and guest.has_entered:
            self._forgive(guest)
        elif not up and guest.has_entered:
            self._await(guest, self._patience)

    def _await(self, guest: Guest, seconds: float) -> None:
        self._forgive(guest)
        why = f"node {guest.member.index} ({guest.name}) could not be reached for {seconds:g} s"
        guest.deadline = self._node.loop.call_later(seconds, self._lost, guest, why)

    def _forgive(self, guest: Guest) -> None:
        if guest.deadline is not None:
            guest.deadline.cancel()
            guest.deadline = None

    def _lost(self, guest: Guest, why: str) -> None:
        self._forgive(guest)
        if self._closing:
            return
        index = guest.member.index
        (logger.info if guest.is_leaving else logger.error)("%s", why)
        error = NodeDiedError(why)
        del self._guests[index]
        self._network.expected.pop(index, None)
        peer = self._node.exchange.find_peer(index)
        if peer is not None:
            self._network.refuse(peer)
        self._roster.down(guest.member, error, final=True)
        del self._roster.members[index]
        for entry in [*self.directory.node_lost(index, error), *guest.revived]:
            self.directory.forget(entry, error)
        self._node.cells.pop(desk_id(index), None)
        self._changed.set()

    # What the desks ask

    def checked(self, request: SpawnRequest) -> SpawnRequest:
        """A guest's request with its place; on this host only a class that it may name.

        Raises:
            SpawnError: it may not, or there is no such node.
        """
        index = self.directory.place(request.node)
        where = replace(request.location, path=None)
        if index not in self._guests:
            where = location.locate(self._imports.find(where))
        return replace(request, location=where, node=index)

    def report(self, guest: Guest, report: Report) -> None:
        """What a guest says of one of its own actors."""
        entry = self.directory.entries.get(report.id)
        if entry is not None and entry.ref.address.node == guest.member.index:
            self.directory.report(report)

    async def leave(self, guest: Guest) -> None:
        """A guest is about to go: end its actors first."""
        guest.is_leaving = True
        guest.member.is_up = False
        index = guest.member.index
        peer = self._node.exchange.find_peer(index)
        if peer is not None:
            peer.is_announced = False  # no new actors go there
        entries = [entry for entry in self.directory.entries.values() if entry.ref.address.node == index]
        stops = (self.directory.stop(entry.ref, drain=True, timeout=self._stop_timeout) for entry in entries)
        await asyncio.gather(*stops, return_exceptions=True)
        self._await(guest, ENTER)


class Desk(DirectoryActor):
    """The directory's messages for one guest."""

    def __init__(self, guests: Guests, guest: Guest) -> None:
        super().__init__(guests.directory)
        self._guests = guests
        self._guest = guest

    @concurrent
    async def spawn(self, request: SpawnRequest) -> ActorRef:
        """Start an actor somewhere."""
        return await super().spawn(self._guests.checked(request))

    async def report(self, report: Report) -> None:
        """What became of one of the guest's actors."""
        self._guests.report(self._guest, report)

    @concurrent
    async def enter(self, living: list[list[int]]) -> list[Any]:
        """The guest's link stands."""
        return list(await self._guests.enter(self._guest, living))

    @concurrent
    async def leave(self) -> None:
        """The guest is about to go."""
        await self._guests.leave(self._guest)


def _no_extension(code: int, data: bytes) -> None:
    raise CodecError(f"an extension of type {code} in a request to join")
