"""The mesh: all actors that can reach each other, in this process and its child processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tinker_actors.actors import survey
from tinker_actors.actors.agent import DirectoryActor
from tinker_actors.actors.arena import LIMIT as SHARED_MEMORY
from tinker_actors.actors.checks import check_count, check_seconds
from tinker_actors.actors.directory import Directory, make_cell
from tinker_actors.actors.endpoint import Endpoint
from tinker_actors.actors.errors import JoinError
from tinker_actors.actors.folder import PrivateFolder
from tinker_actors.actors.keys import Keys
from tinker_actors.actors.lifecycle import Lifecycle
from tinker_actors.actors.mesh_options import (
    check_imports,
    check_processes,
    check_sizes,
    check_times,
    checked_endpoint,
)
from tinker_actors.actors.node import MAX_MESSAGE, Node
from tinker_actors.actors.pulse import Thresholds
from tinker_actors.actors.restart import RestartHistory, RestartPolicy
from tinker_actors.actors.view import MeshView
from tinker_actors.actors.window import Window

if TYPE_CHECKING:
    from tinker_actors.actors.checked import CheckedMesh, Unattended
    from tinker_actors.actors.children import Children
    from tinker_actors.actors.description import MeshDescription
    from tinker_actors.actors.guests import Guests
    from tinker_actors.actors.joined import JoinedMesh
    from tinker_actors.actors.placement import Placement
    from tinker_actors.actors.roster import Roster

logger = logging.getLogger(__name__)


class Mesh(MeshView):
    """`async with Mesh(nodes=3) as mesh:` on the running event loop.

    Node 0 is this process; the others are child processes. The mesh installs no signal handler and touches no loop
    policy; several meshes can live in one process. Everything it started has ended when the block is left.

    Args:
        nodes: processes, this one included.
        stop_timeout: seconds for all actors to drain and stop at the end; then they are cancelled.
        start_timeout: seconds for a child process to come up.
        max_message: bytes of one message, its arrays included; larger ones are refused at the sender.
        shared_memory: bytes that each process may use to hand large data to others of this host; 0 for none.
        busy_poll: seconds that a process looks for the answer to an ask to another process, if that is the only one
            under way, before it sleeps; None: 200 us where it may use several cores, else 0.
        placement: where the other nodes start, such as `RayPlacement`; None: as child processes of this one.
        restart: how often a child process that died is started again.
        env: environment variables for the child processes, besides this process's own.
        loop: event loop of the child processes: "auto" (uvloop where it is installed) or "asyncio".
        listen: `tcp://HOST:PORT` where nodes on other hosts may join; port 0 takes a free one (see `url`). 0.0.0.0
            listens on every address. Without `keys` only on loopback.
        keys: this host's key pair, and the public keys of those that may join.
        ping: seconds between heartbeats on links between hosts; a silent link is cut after one to two of them.
        patience: seconds that a cut link has to heal before its node is given up.
        imports: modules of which nodes on other hosts may spawn actors on this host, by prefix; None: those that are
            imported already.
        observe: let `tinker-actors ps` and `top`, run by the same user on this host, look at this mesh.
        name: what `tinker-actors ps` and `top` call it; the program's name if not given.
        slow_handler: seconds after which a handler that still runs is logged; None: none is.
        blocked_loop: seconds after which an event loop that does not turn is logged, with what blocks it; None: never.
        ask_cycle: seconds that an ask waits behind a handler that waits for an ask itself, before these are followed
            to see whether they wait for each other; None: never.

    Raises:
        ConfigError: an argument means nothing; the message names it. Or `listen` needs keys, or it or `keys` is given
            beside a placement.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        stop_timeout: float = 3.0,
        start_timeout: float = 60.0,
        max_message: int = MAX_MESSAGE,
        shared_memory: int = SHARED_MEMORY,
        busy_poll: float | None = None,
        placement: Placement | None = None,
        restart: RestartPolicy | None = None,
        env: Mapping[str, str] | None = None,
        loop: str = "auto",
        listen: str | None = None,
        keys: Keys | None = None,
        ping: float = 1.0,
        patience: float = 30.0,
        imports: Sequence[str] | None = None,
        observe: bool = True,
        name: str | None = None,
        slow_handler: float | None = None,
        blocked_loop: float | None = 1.0,
        ask_cycle: float | None = 0.25,
    ) -> None:
        check_times(stop_timeout, start_timeout, ping, patience, busy_poll)
        check_sizes(nodes, max_message, shared_memory)
        check_processes(placement, restart, env, loop, name)
        check_imports(imports)
        super().__init__(None, None)
        self._placement = placement
        self._listen = checked_endpoint(listen, keys, placement)
        self._keys = keys
        self._ping = ping
        self._patience = patience
        self._imports = imports
        self._guests: Guests | None = None
        self.name = name or Path(sys.argv[0]).stem or "python"
        self._thresholds = Thresholds(slow_handler=slow_handler, blocked_loop=blocked_loop, ask_cycle=ask_cycle)
        self._observe = observe
        self._window: Window | None = None
        self._entered = False
        self._nodes = nodes
        self._count = nodes if placement is None else 1
        self._stop_timeout = stop_timeout
        self._start_timeout = start_timeout
        self._max_message = max_message
        self._shared_memory = shared_memory
        self._busy_poll = busy_poll
        self._restart = restart or RestartPolicy.on_failure(max_restarts=5, within=60.0, backoff=0.05)
        self._env = env
        self._loop_name = loop
        self._directory: Directory | None = None
        self._children: Children | None = None
        self._folder: PrivateFolder | None = None

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RuntimeError("this mesh is already running or has ended; make another one")
        self._entered = True
        node = self._node = Node(
            mesh=secrets.token_hex(16),
            index=0,
            incarnation=1,
            count=self._count,
            max_message=self._max_message,
            shared_memory=self._shared_memory,
            busy_poll=self._busy_poll,
            thresholds=self._thresholds,
        )
        directory = self._directory = self._registry = Directory(node)
        node.supervisor = directory
        try:
            if self._nodes > 1 or self._listen is not None:
                await self._start_nodes(node, directory)
            if self._observe:
                await self._open_window()
        except BaseException:  # a cancelled start too leaves no process
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    @classmethod
    def test(cls, *, allow: Iterable[Unattended | str] = (), **options: Any) -> CheckedMesh:
        """A mesh for tests, to be used as one; when its block is left, it fails if the test left something unattended.

        That is: actors that did not end within `stop_timeout` seconds (1.0 here), actors that ended by a failure
        while nobody watched them, and dead letters. If the block itself raised, that error gets it as a note.

        Args:
            allow: what not to fail for: "leaks", "failures", "dead_letters".
            **options: see `Mesh`.

        Raises:
            AssertionError: at the end of the block, naming what was found.
        """
        from tinker_actors.actors.checked import CheckedMesh

        return CheckedMesh(allow=allow, **options)

    @property
    def pids(self) -> dict[int, int]:
        """The process ids of the child nodes, by node index."""
        return {} if self._children is None else self._children.pids

    @property
    def folder(self) -> Path | None:
        """Where the sockets and logs are while the mesh runs; None with neither child nodes nor `observe`."""
        return None if self._folder is None else self._folder.path

    @classmethod
    def join(
        cls,
        url: str,
        *,
        keys: Keys | None = None,
        name: str | None = None,
        listen: str | None = None,
        imports: Sequence[str] | None = None,
        timeout: float = 10.0,
        patience: float = 30.0,
    ) -> JoinedMesh:
        """`async with Mesh.join("tcp://head:7000", keys=...) as mesh:`: be a node of a mesh that listens elsewhere.

        Args:
            url: where the mesh listens.
            keys: this host's key pair and the listening host's public key.
            name: of this node. One that comes again under the name of a node that is cut off takes its place and its
                restartable actors.
            listen: `tcp://HOST:PORT` where the other nodes reach this one; None: a free port of the address that
                leads to `url`.
            imports: modules whose actors may be spawned here from elsewhere, by prefix; they are imported when
                needed. None: those that are imported already.
            timeout: seconds to get in, the mesh's own start included.
            patience: seconds that a cut link to the mesh has to heal; then this node ends.

        Raises:
            ConfigError: `url` is no address, or needs keys. Entering the block raises `HandshakeError` if the keys
                don't fit, `JoinError` if nobody answers or the mesh refuses, and `ListenError`.
        """
        from tinker_actors.actors.joined import JoinedMesh

        return JoinedMesh(url, keys=keys, name=name, listen=listen, imports=imports, timeout=timeout, patience=patience)

    @property
    def url(self) -> str | None:
        """Where nodes of other hosts may join while the mesh runs; None if it does not listen."""
        network = None if self._node is None else self._node.exchange.network
        return None if network is None else network.url

    async def wait_for_nodes(self, count: int, *, timeout: float = 60.0) -> None:
        """Wait until `count` nodes, this one included, are up.

        Raises:
            JoinError: they did not come within `timeout` seconds.
        """
        check_count("count", count, 1)
        check_seconds("timeout", timeout, least=0)
        if self._guests is None:
            if count > self._count:
                raise JoinError(f"this mesh has {self._count} nodes and does not listen for others")
            return
        try:
            async with asyncio.timeout(timeout):
                await self._guests.wait_for(count)
        except TimeoutError:
            raise JoinError(f"{count} nodes did not come together in {timeout:g} s") from None

    async def describe(self) -> MeshDescription:
        """What runs at this moment, and how: nodes, links, actors. Takes no longer than two seconds.

        A node that does not answer in time is described as silent, its actors' numbers as None.
        """
        self._open()
        assert self._directory is not None
        return await survey.describe(self._directory, self.name, self.pids)

    async def _open_window(self) -> None:
        try:
            if self._folder is None:
                self._folder = PrivateFolder()
            self._window = Window(self._folder.path, self.describe)
            await self._window.open(self.name, self._count)
        except OSError as error:  # no disk, a full one: the mesh works all the same
            logger.warning("tinker-actors ps can't see this mesh: %s", error)

    async def _start_nodes(self, node: Node, directory: Directory) -> None:
        from tinker_actors.actors.roster import Roster
        from tinker_actors.actors.worker import system_address

        roster = Roster(node, directory)
        if self._placement is not None:
            self._listen, self._keys = await self._placement.open()
        if self._listen is not None:
            self._start_guests(node, directory, roster, self._listen)
        if self._count > 1:
            cell = make_cell(node, directory, DirectoryActor, system_address(node.mesh, 0))
            await Lifecycle(node, cell, (directory,), {}, RestartHistory(RestartPolicy.never())).start()
            await self._start_children(node, directory, roster)
        if self._placement is not None:
            joined = self.wait_for_nodes(self._nodes, timeout=self._start_timeout)
            await self._placement.start(self.url or "", self._nodes - 1, patience=self._patience, joined=joined)

    def _start_guests(self, node: Node, directory: Directory, roster: Roster, endpoint: Endpoint) -> None:
        from tinker_actors.actors.guests import Guests
        from tinker_actors.actors.imports import Imports
        from tinker_actors.actors.network import Network

        network = node.exchange.network = Network(node.exchange, self._keys, self._ping)
        network.listen(endpoint)
        self._guests = Guests(
            node,
            directory,
            roster,
            network,
            imports=Imports(self._imports),
            patience=self._patience,
            stop_timeout=self._stop_timeout,
        )

    async def _start_children(self, node: Node, directory: Directory, roster: Roster) -> None:
        from tinker_actors.actors.children import Children

        private = self._folder = PrivateFolder()
        node.exchange.listen(f"ipc://{private.path}/0.1")
        network = None
        if self._listen is not None:
            keys = None if self._keys is None else self._keys.as_config()
            network = {"host": self._listen.host, "ping": self._ping, "keys": keys}
        self._children = Children(
            node,
            directory,
            folder=private.path,
            env=self._env,
            loop=self._loop_name,
            policy=self._restart,
            start_timeout=self._start_timeout,
            roster=roster,
            network=network,
        )
        await self._children.start()

    async def _close(self) -> None:
        node, directory = self._node, self._directory
        assert node is not None
        assert directory is not None
        if node.closed:
            return
        try:
            if self._window is not None:
                await self._window.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._stop_timeout + 0.5):
                    await directory.close(self._stop_timeout)
        finally:
            directory.closing = True
            try:
                if self._guests is not None:
                    await self._guests.close()
                if self._children is not None:
                    await self._children.close()
                if self._placement is not None:
                    await self._placement.close()
            finally:
                tasks = [cell.task for cell in list(node.cells.values()) if cell.task is not None]
                for cell in list(node.cells.values()):
                    if hasattr(cell, "life"):
                        cell.life.abort()
                node.close()
                if self._folder is not None:
                    self._folder.remove()
                if tasks:
                    await asyncio.wait(tasks, timeout=1.0)
