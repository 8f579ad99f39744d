"""The child nodes of a mesh on this host: started, watched, started again, ended."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import main_module
from tinker_actors.actors.errors import NodeDiedError, SpawnError
from tinker_actors.actors.process import ChildProcess
from tinker_actors.actors.restart import RestartHistory, RestartPolicy
from tinker_actors.actors.roster import Member, Roster
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
        self.member = Member(index)
        self.process: ChildProcess | None = None
        self.history = RestartHistory(policy)
        self.up: asyncio.Future[None] | None = None  # while it starts


class Children:
    """All child nodes. `folder` (private to this user) holds their sockets and logs.

    `network` tells them how to be reached from other hosts: {"host", "ping", "keys"}.
    """

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
        roster: Roster,
        network: Mapping[str, Any] | None = None,
    ) -> None:
        self._node = node
        self._roster = roster
        self._network = network
        self._directory = directory
        self._folder = folder
        self._env = env
        self._loop_name = loop
        self._start_timeout = start_timeout
        self._closing = False
        self._children = {index: Child(index, policy) for index in range(1, node.count)}
        for index, child in self._children.items():
            roster.members[index] = child.member
            child.member.key = network["keys"]["public"] if network is not None and network["keys"] else None
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
            self._roster.introduce(child.member)
            self._roster.announce(child.member)

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
        child.member.incarnation += 1
        child.up = self._node.loop.create_future()
        script = main_module.describe()
        name = f"{child.index}.{child.member.incarnation}"
        config = {
            "mesh": self._node.mesh,
            "index": child.index,
            "incarnation": child.member.incarnation,
            "count": self._node.count,
            "max_message": self._node.exchange.max_message,
            "shared_memory": self._node.exchange.bulk.limit,
            "busy_poll": self._node.exchange.lookout.seconds,
            "thresholds": dataclasses.asdict(self._node.thresholds),
            "url": f"ipc://{self._folder}/{name}",
            "parent_url": self._node.exchange.url,
            "parent": os.getpid(),
            "path": sys.path,
            "argv": sys.argv,
            "main_module": script.module,
            "main_path": script.path,
            "loop": self._loop_name,
            "network": self._network,
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

    def _greeted(self, index: int, incarnation: int, url: str, network: str | None) -> bool:
        """A child says hello; True if it is the incarnation that is expected."""
        child = self._children.get(index)
        if child is None or incarnation != child.member.incarnation or child.up is None:
            return False
        child.member.url, child.member.network = url, network
        if not child.up.done():
            child.up.set_result(None)
        return True

    def _exited(self, child: Child, process: ChildProcess) -> None:
        if self._closing:
            return
        error = NodeDiedError(f"node {child.index} (pid {process.pid}) {process.how_it_ended()}", process.tail())
        if child.up is not None and not child.up.done():
            child.up.set_exception(SpawnError(f"node {child.index} ended while it started: {error}"))
            return
        logger.error("node %d (pid %d) %s", child.index, process.pid, process.how_it_ended())
        self._roster.down(child.member, error, final=False)
        entries = self._directory.node_lost(child.index, error)
        self._directory.background(self._respawn(child, entries, error))

    async def _respawn(self, child: Child, entries: list[Entry], error: NodeDiedError) -> None:
        while True:
            delay = child.history.next_delay(self._node.loop.time(), failed=True)
            if delay is None:
                self._roster.down(child.member, error, final=True)
                for entry in entries:
                    self._directory.forget(entry, error)
                return
            await asyncio.sleep(delay)
            try:
                await self._start(child)
                self._roster.introduce(child.member)
                await self._directory.revive(child.index, entries, error)
            except SpawnError as failure:
                error = NodeDiedError(f"node {child.index} could not be started again", str(failure))
                continue
            except NodeDiedError:
                return  # it died again meanwhile; that has its own respawn
            self._roster.announce(child.member)
            return
