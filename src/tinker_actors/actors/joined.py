"""A node that has joined a mesh on another host, as a program of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tinker_actors.actors.agent import NodeAgent, RemoteDirectory
from tinker_actors.actors.checks import check_name, check_seconds
from tinker_actors.actors.control import SYSTEM_IDS, CellSpec, Report
from tinker_actors.actors.directory import make_cell
from tinker_actors.actors.endpoint import Endpoint, address_towards
from tinker_actors.actors.errors import JoinError, NodeDiedError, NodeUnreachableError
from tinker_actors.actors.imports import Imports
from tinker_actors.actors.keys import Keys
from tinker_actors.actors.lifecycle import Lifecycle
from tinker_actors.actors.mesh_options import check_imports, check_keys
from tinker_actors.actors.node import Node
from tinker_actors.actors.pulse import Thresholds
from tinker_actors.actors.restart import RestartHistory, RestartPolicy
from tinker_actors.actors.view import MeshView
from tinker_actors.actors.worker import system_address
from tinker_actors.errors import ActorError, ConfigError

if TYPE_CHECKING:
    from tinker_actors.actors.joining import Welcome

logger = logging.getLogger(__name__)

LINGER = 500  # milliseconds for the last answers to leave


class GuestDirectory(RemoteDirectory):
    """A guest's way to the directory. A report that can't be sent is made up for when the link is back."""

    def report(self, report: Report) -> None:
        """Tell the directory."""
        with contextlib.suppress(ActorError):
            super().report(report)

    async def stop_children(self, parent: int) -> None:
        """End what an actor of this node spawned."""
        with contextlib.suppress(NodeUnreachableError):
            await super().stop_children(parent)


class GuestAgent(NodeAgent):
    """Starts actors of those classes only that another host may name."""

    def __init__(self, node: Node, registry: RemoteDirectory, leave: Callable[[], None], imports: Imports) -> None:
        super().__init__(node, registry, leave)
        self._imports = imports

    def _cell(self, spec: CellSpec) -> Any:
        return make_cell(self._node, self._registry, self._imports.find(spec.location), spec.address)


class JoinedMesh(MeshView):
    """What `Mesh.join` makes: `async with` it to be a node of the mesh for as long as the block lasts.

    Inside it offers what a mesh offers: `spawn`, `get`, `watch`, `stop`. When the block is left, this node's actors
    are stopped first. If the mesh ends, or can't be reached for too long, this node's actors end and everything that
    is asked raises `UnroutableError`; `wait_closed` waits for that.
    """

    def __init__(
        self,
        url: str,
        *,
        keys: Keys | None,
        name: str | None,
        listen: str | None,
        imports: Sequence[str] | None,
        timeout: float,
        patience: float,
    ) -> None:
        super().__init__(None, None)
        self._endpoint = Endpoint.parse(url)
        check_keys(keys)
        check_imports(imports)
        check_seconds("timeout", timeout, above=0)
        check_seconds("patience", patience, least=0)
        if name is not None:
            check_name("name", name)
        if keys is None and not self._endpoint.is_loopback:
            raise ConfigError(f"joining {url} on another host needs keys (`keys=`, see `tinker-actors keys mesh`)")
        self._keys = keys
        self._name = name or f"{socket.gethostname()}-{os.getpid()}-{id(self):x}"
        self._listen = None if listen is None else Endpoint.parse(listen)
        self._imports = Imports(imports)
        self._timeout = timeout
        self._patience = patience
        self._closed: asyncio.Future[None] | None = None
        self._entering: asyncio.Task[None] | None = None
        self._give_up: asyncio.TimerHandle | None = None
        self._leaving = False

    async def __aenter__(self) -> Self:
        if self._closed is not None:
            raise RuntimeError("this node has joined already or has left; make another one")
        loop = asyncio.get_running_loop()
        self._closed = loop.create_future()
        deadline = loop.time() + self._timeout
        from tinker_actors.actors.joining import ask_to_join

        welcome = await ask_to_join(self._endpoint, self._keys, self._name, self._timeout)
        try:
            await self._enter(welcome, deadline)
        except BaseException:  # a cancelled entry too leaves nothing running
            self._end(None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        node = self._node
        if node is None or node.closed:
            return
        self._leaving = True
        try:
            with contextlib.suppress(ActorError, TimeoutError):
                async with asyncio.timeout(self._patience):
                    await self._desk.leave()
                    while node.exchange.has_unsent:  # noqa: ASYNC110 - for a moment, at the end
                        await asyncio.sleep(0.005)
        finally:
            self._end(None)

    async def wait_closed(self) -> None:
        """Wait until the mesh has ended.

        Raises:
            NodeDiedError: it did not end in order: node 0 could not be reached for too long.
        """
        if self._closed is None:
            raise RuntimeError("this node has not joined yet")
        await asyncio.shield(self._closed)

    async def _enter(self, welcome: Welcome, deadline: float) -> None:
        from tinker_actors.actors.guests import desk_address
        from tinker_actors.actors.network import Network

        node = self._node = Node(
            mesh=welcome.mesh,
            index=welcome.index,
            incarnation=welcome.incarnation,
            count=1,
            max_message=welcome.max_message,
            thresholds=Thresholds(ask_cycle=welcome.ask_cycle),
        )
        node.count = welcome.index + 1
        network = node.exchange.network = Network(node.exchange, self._keys, welcome.ping)
        own = address_towards(self._endpoint)
        bound = network.listen(self._listen or Endpoint(own, 0))
        network.url = bound.at(own).url
        network.host = self._endpoint.host
        self._desk: Any = node.ref(desk_address(node.mesh, node.index))
        registry = self._registry = GuestDirectory(node, self._desk)
        node.supervisor = registry
        cell = make_cell(node, registry, GuestAgent, system_address(node.mesh, node.index))
        history = RestartHistory(RestartPolicy.never())
        await Lifecycle(node, cell, (node, registry, self._dismissed, self._imports), {}, history).start()
        entered = node.loop.create_future()
        network.linked = lambda index, up: self._linked(up, entered) if index == 0 else None
        server = None if self._keys is None else self._keys.server
        node.exchange.connect(0, 1, self._endpoint.url, server)
        node.exchange.open_peer(0)
        try:
            async with asyncio.timeout_at(deadline):
                await entered
        except TimeoutError:
            raise JoinError(
                f"{self._endpoint.url} let this node in, but there is no link both ways: it must be able to connect "
                f"to {network.url} (`listen=` sets another address)"
            ) from None

    def _linked(self, up: bool, entered: asyncio.Future[None]) -> None:
        """The link to node 0 opened or was cut."""
        node = self._node
        assert node is not None
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None
        if self._entering is not None:
            self._entering.cancel()
        if up:
            self._entering = node.loop.create_task(self._introduce(node, entered))
        elif not self._leaving:
            error = NodeDiedError(f"node 0 at {self._endpoint.url} could not be reached for {self._patience:g} s")
            self._give_up = node.loop.call_later(self._patience, self._end, error)

    async def _introduce(self, node: Node, entered: asyncio.Future[None]) -> None:
        cells = [cell for ident, cell in node.cells.items() if ident >= SYSTEM_IDS and hasattr(cell, "life")]
        try:
            names, unknown = await self._desk.enter([[cell.id, cell.life.incarnation] for cell in cells])
        except ActorError as error:  # cut again; the next link tries again
            logger.debug("could not enter: %s", error)
            return
        for name in node.names.keys() - set(names):
            del node.names[name]
        for ident in unknown:
            if ident in node.cells:
                await node.cells[ident].life.stop(drain=False)
        if not entered.done():
            entered.set_result(None)

    def _dismissed(self) -> None:
        """The mesh has ended in order; the answer to that goes out first."""
        self._leaving = True
        assert self._node is not None
        self._node.loop.call_soon(self._end, None)

    def _end(self, error: Exception | None) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
        if self._entering is not None:
            self._entering.cancel()
        node = self._node
        if node is not None and not node.closed:
            for cell in list(node.cells.values()):
                if hasattr(cell, "life"):
                    cell.life.abort()
            node.exchange.flush()
            node.close(LINGER)
        if self._closed is not None and not self._closed.done():
            if error is None:
                self._closed.set_result(None)
            else:
                logger.error("this node has left the mesh: %s", error)
                self._closed.set_exception(error)
                self._closed.exception()  # whoever waits gets it; nobody has to
