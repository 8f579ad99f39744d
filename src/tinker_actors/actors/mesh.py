"""The mesh: all actors that can reach each other, in this process and its child processes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tinker_actors.actors.agent import DirectoryActor
from tinker_actors.actors.directory import Directory, make_cell
from tinker_actors.actors.folder import PrivateFolder
from tinker_actors.actors.lifecycle import Lifecycle
from tinker_actors.actors.node import MAX_MESSAGE, Node
from tinker_actors.actors.restart import RestartHistory, RestartPolicy
from tinker_actors.actors.view import MeshView

if TYPE_CHECKING:
    from tinker_actors.actors.children import Children


class Mesh(MeshView):
    """`async with Mesh(nodes=3) as mesh:` on the running event loop.

    Node 0 is this process; the others are child processes. The mesh installs no signal handler and touches no loop
    policy; several meshes can live in one process. Everything it started has ended when the block is left.

    Args:
        nodes: processes, this one included.
        stop_timeout: seconds for all actors to drain and stop at the end; then they are cancelled.
        start_timeout: seconds for a child process to come up.
        max_message: bytes of one message, its arrays included; larger ones are refused at the sender.
        restart: how often a child process that died is started again.
        env: environment variables for the child processes, besides this process's own.
        loop: event loop of the child processes: "auto" (uvloop where it is installed) or "asyncio".
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        stop_timeout: float = 3.0,
        start_timeout: float = 60.0,
        max_message: int = MAX_MESSAGE,
        restart: RestartPolicy | None = None,
        env: Mapping[str, str] | None = None,
        loop: str = "auto",
    ) -> None:
        if nodes < 1:
            raise ValueError(f"nodes counts this process too and must be at least 1, got {nodes}")
        if loop not in ("auto", "asyncio"):
            raise ValueError(f"loop must be 'auto' or 'asyncio', got {loop!r}")
        super().__init__(None, None)
        self._entered = False
        self._count = nodes
        self._stop_timeout = stop_timeout
        self._start_timeout = start_timeout
        self._max_message = max_message
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
            mesh=secrets.token_hex(16), index=0, incarnation=1, count=self._count, max_message=self._max_message
        )
        directory = self._directory = self._registry = Directory(node)
        node.supervisor = directory
        if self._count > 1:
            try:
                await self._start_children(node, directory)
            except BaseException:
                await self._close()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    @property
    def pids(self) -> dict[int, int]:
        """The process ids of the child nodes, by node index."""
        return {} if self._children is None else self._children.pids

    @property
    def folder(self) -> Path | None:
        """Where the sockets and logs of the child nodes are while the mesh runs; None without child nodes."""
        return None if self._folder is None else self._folder.path

    async def _start_children(self, node: Node, directory: Directory) -> None:
        from tinker_actors.actors.children import Children
        from tinker_actors.actors.worker import system_address

        private = self._folder = PrivateFolder()
        folder = private.path
        node.exchange.listen(f"ipc://{folder}/0.1")
        cell = make_cell(node, directory, DirectoryActor, system_address(node.mesh, 0))
        await Lifecycle(node, cell, (directory,), {}, RestartHistory(RestartPolicy.never())).start()
        self._children = Children(
            node,
            directory,
            folder=folder,
            env=self._env,
            loop=self._loop_name,
            policy=self._restart,
            start_timeout=self._start_timeout,
        )
        await self._children.start()

    async def _close(self) -> None:
        node, directory = self._node, self._directory
        assert node is not None
        assert directory is not None
        if node.closed:
            return
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._stop_timeout + 0.5):
                    await directory.close(self._stop_timeout)
        finally:
            directory.closing = True
            try:
                if self._children is not None:
                    await self._children.close()
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
