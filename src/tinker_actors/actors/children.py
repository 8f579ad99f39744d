"""The child nodes of a mesh on this host: started, watched, started again, ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import envelope, main_module
from tinker_actors.actors.errors import NodeDiedError, SpawnError
from tinker_actors.actors.process import ChildProcess
from tinker_actors.actors.restart import RestartHistory, RestartPolicy
from tinker_actors.actors.worker import system_address
from tinker_actors.errors import ActorError

if TYPE_CHECKING:
    from tinker_actors.actors.directory import Directory, Entry
    from tinker_actors.actors.node import Node

logger = logging.getLogger(__name__)

LEAVE = 1.0  # seconds for a child to end in order once its actors have


class Child:
    """One child node over its incarnations."""

    def __init__(self, index: int, policy: RestartPolicy) -> None:
        self.index = index
        self.incarnation = 0
        self.url = ""
        self.process: ChildProcess | None = None
        self.history = RestartHistory(policy)
        self.up: asyncio.Future[None] | None = None  # while it starts


class Children:
    """All child nodes. `folder` (private to this user) holds their sockets and logs."""

    def __init__(
        self,
        node: Node,
        directory: Directory,
        *,
        folder: Path,
        env: Mapping[str, str] | None,
        loop: str,
        policy: RestartPolicy,
        start_timeout: float,
    ) -> None:
        self._node = node
        self._directory = directory
        self._folder = folder
        self._env = env
        self._loop_name = loop
        self._start_timeout = start_timeout
        self._closing = False
        self._children = {index: Child(index, policy) for index in range(1, node.count)}
        node.exchange.greeted = self._greeted
        for index in self._children:
            directory.agents[index] = node.ref(system_address(node.mesh, index))

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by node index."""
        return {index: child.process.pid for index, child in self._children.items() if child.process is not None}

    async def start(self) -> None:
        """Start all of them side by side.

        Raises:
            SpawnError: one did not come up; carries the end of its log.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for child in self._children.values():
                    group.create_task(self._start(child))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        for child in self._children.values():
            self._introduce(child)
            self._announce(child)

    async def close(self) -> None:
        """Let the children end in order, for at most `LEAVE` seconds, then kill them."""
        self._closing = True
        processes = [child.process for child in self._children.values() if child.process is not None]
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE):
                    await asyncio.gather(*(self._leave(child) for child in self._children.values()))
                    for process in processes:
                        process.release()
                    await asyncio.gather(*(asyncio.shield(process.ended) for process in processes))
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.reap(LEAVE)

    async def _leave(self, child: Child) -> None:
        agent: Any = self._directory.agents[child.index]
        if child.up is None and child.process is not None and not child.process.ended.done():
            with contextlib.suppress(ActorError):
                await agent.leave()

    async def _start(self, child: Child) -> None:
        """Start an incarnation and wait until it has said hello."""
        child.incarnation += 1
        child.up = self._node.loop.create_future()
        script = main_module.describe()
        name = f"{child.index}.{child.incarnation}"
        config = {
            "mesh": self._node.mesh,
            "index": child.index,
            "incarnation": child.incarnation,
            "count": self._node.count,
            "max_message": self._node.exchange.max_message,
            "url": f"ipc://{self._folder}/{name}",
            "parent_url": self._node.exchange.url,
            "parent": os.getpid(),
            "path": sys.path,
            "argv": sys.argv,
            "main_module": script.module,
            "main_path": script.path,
            "loop": self._loop_name,
        }
        child.process = ChildProcess(
            self._node.loop,
            config,
            self._folder / f"{name}.log",
            self._env,
            lambda process: self._exited(child, process),
        )
        try:
            async with asyncio.timeout(self._start_timeout):
                await child.up
        except TimeoutError:
            tail = child.process.tail()
            child.process.kill()
            raise SpawnError(f"node {child.index} did not come up in {self._start_timeout:g} s\n{tail}") from None
        finally:
            child.up = None

    def _greeted(self, index: int, incarnation: int, url: str) -> bool:
        """A child says hello; True if it is the incarnation that is expected."""
        child = self._children.get(index)
        if child is None or incarnation != child.incarnation or child.up is None:
            return False
        child.url = url
        if not child.up.done():
            child.up.set_result(None)
        return True

    def _introduce(self, child: Child) -> None:
        """Tell a child what it must know before its actors start: names, and the other nodes."""
        for name, ref in self._node.names.items():
            self._node.exchange.send(child.index, [envelope.NAME, name, ref])
        for other in self._children.values():
            if other is not child and self._node.exchange.is_open(other.index):
                self._node.exchange.send(child.index, _notice(other))

    def _announce(self, child: Child) -> None:
        """Let requests to a child through, from here and from the other nodes."""
        self._node.exchange.open_peer(child.index)
        self._directory.tell_nodes(_notice(child), besides=child.index)

    def _exited(self, child: Child, process: ChildProcess) -> None:
        if self._closing:
            return
        error = NodeDiedError(f"node {child.index} (pid {process.pid}) {process.how_it_ended()}", process.tail())
        if child.up is not None and not child.up.done():
            child.up.set_exception(SpawnError(f"node {child.index} ended while it started: {error}"))
            return
        logger.error("node %d (pid %d) %s", child.index, process.pid, process.how_it_ended())
        self._down(child, error, final=False)
        entries = self._directory.node_lost(child.index, error)
        self._directory.background(self._respawn(child, entries, error))

    def _down(self, child: Child, error: NodeDiedError, *, final: bool) -> None:
        self._node.exchange.peer_down(child.index, child.incarnation, error, final=final)
        notice = [envelope.PEER, child.index, child.incarnation, None, error, final]
        self._directory.tell_nodes(notice, besides=child.index)

    async def _respawn(self, child: Child, entries: list[Entry], error: NodeDiedError) -> None:
        while True:
            delay = child.history.next_delay(self._node.loop.time(), failed=True)
            if delay is None:
                self._down(child, error, final=True)
                for entry in entries:
                    self._directory.forget(entry, error)
                return
            await asyncio.sleep(delay)
            try:
                await self._start(child)
                self._introduce(child)
                await self._directory.revive(child.index, entries, error)
            except SpawnError as failure:
                error = NodeDiedError(f"node {child.index} could not be started again", str(failure))
                continue
            except NodeDiedError:
                return  # it died again meanwhile; that has its own respawn
            self._announce(child)
            return


def _notice(child: Child) -> list[Any]:
    return [envelope.PEER, child.index, child.incarnation, child.url, None, False]
