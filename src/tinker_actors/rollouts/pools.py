"""The pool of environment processes of one rollout worker, and an environment that lives in one of them."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import signal
import uuid
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from tinker_actors.actors import (
    ActorDiedError,
    ActorStoppedError,
    MeshView,
    NodeDiedError,
    RestartPolicy,
    UnroutableError,
)
from tinker_actors.data import Message, ToolList
from tinker_actors.environments import Environment, EnvironmentFactory, Forfeit, Outcome
from tinker_actors.rollouts.hosts import HostedEnvironmentError, InstanceHost, Opened, UnknownEpisodeError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOST = (ActorDiedError, ActorStoppedError, NodeDiedError, UnroutableError)
_TO_END = 5.0  # seconds that a process has to end by itself
_LOG_TAIL = 300  # characters of a dead process's log that an episode's error shows
# one stuck or killed instance costs its process one start
_RESTARTS = RestartPolicy.on_failure(max_restarts=20, within=60.0)


@dataclass(slots=True, eq=False)
class _Place:
    """One process of the pool, over its incarnations."""

    host: Any
    episodes: int = 0
    stuck: bool = False
    process: tuple[str, int] = ("", 0)  # machine and process id, as last heard of
    died: str = ""  # how its last incarnation ended, as far as a call of ours saw it


class EnvironmentPool:
    """Processes that hold a worker's environments. Each episode goes to the one with the fewest.

    A process that dies fails the episodes that it held, with the end of its log, and is started again. One in which an
    instance didn't close in time gets no further episodes while others can take them; when its last one is over it is
    ended and started again.
    """

    def __init__(self, hosts: Sequence[Any], environment: type[Environment]) -> None:
        self._places = [_Place(host) for host in hosts]
        self._environment = environment
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, mesh: MeshView, factory: EnvironmentFactory, nodes: Sequence[int]) -> EnvironmentPool:
        """Start a host on each of these nodes, as a child of the actor whose mesh it is."""
        spawned = (mesh.spawn(InstanceHost, environment=factory.spec, node=node, restart=_RESTARTS) for node in nodes)
        return cls(await asyncio.gather(*spawned), factory.environment)

    async def open(self, *, luck: int, evaluating: bool, seconds: float | None) -> HostedEnvironment:
        """A fresh or free instance in one of the processes.

        Args:
            luck: As in `LiveEnvironment`.
            evaluating: As in `LiveEnvironment`.
            seconds: How long it may take; None for no limit.

        Raises:
            HostedEnvironmentError: The constructor failed or took too long, or its process died twice.
        """
        episode = uuid.uuid4().hex
        try:
            async with asyncio.timeout(seconds):
                return await self._open(episode, luck, evaluating)
        except TimeoutError:
            raise HostedEnvironmentError(f"no instance within {seconds:g} s") from None

    async def _open(self, episode: str, luck: int, evaluating: bool, again: bool = True) -> HostedEnvironment:
        place = min(self._places, key=lambda place: (place.stuck, place.episodes))
        place.episodes += 1
        try:
            opened = await place.host.open(episode, luck, evaluating)
        except BaseException as error:  # cancelled too: the episode no longer counts at its place
            self.left(place)
            if not isinstance(error, _LOST):
                raise
            place.died = how_it_died(error)
            if not again:
                raise HostedEnvironmentError(place.died) from error
            return await self._open(episode, luck, evaluating, again=False)  # it may have died of another episode
        place.process = opened.machine, opened.pid
        return HostedEnvironment(self, place, episode, opened, self._environment)

    def left(self, place: _Place) -> None:
        """An episode of a process is over."""
        place.episodes -= 1
        if place.stuck and not place.episodes:
            place.stuck = False
            task = asyncio.get_running_loop().create_task(self._end(place))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _end(self, place: _Place) -> None:
        logger.warning("an environment process is ended, because an instance in it didn't close in time")
        try:
            async with asyncio.timeout(_TO_END):
                await place.host.end()
        except _LOST as error:
            place.died = how_it_died(error)
        except TimeoutError:  # its event loop is blocked as well
            machine, pid = place.process
            if machine == platform.node():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class HostedEnvironment:
    """What the coordinator plays, where the instance lives in a process of the pool."""

    def __init__(
        self, pool: EnvironmentPool, place: _Place, episode: str, opened: Opened, environment: type[Environment]
    ) -> None:
        self.name, self.seats, self.max_turns = opened.name, opened.seats, opened.max_turns
        self.environment = environment
        self._pool, self._place, self._episode = pool, place, episode
        self.tools: Mapping[str, ToolList] = {}
        self._closed = False

    async def reset(self, seed: int) -> dict[str, tuple[Message, ...]]:
        """As `LiveEnvironment.reset`."""
        observations, self.tools = await self._asked(self._place.host.reset(self._episode, seed))
        return observations

    async def step(self, actions: dict[str, str]) -> Outcome:
        """As `LiveEnvironment.step`."""
        return await self._asked(self._place.host.step(self._episode, dict(actions)))

    async def demonstrate(self, seat: str) -> str:
        """As `LiveEnvironment.demonstrate`."""
        return await self._asked(self._place.host.demonstrate(self._episode, seat))

    async def forfeit(self, failed: tuple[str, ...], rule: Forfeit | None) -> Mapping[str, float] | None:
        """As `LiveEnvironment.forfeit`."""
        return await self._asked(self._place.host.forfeit(self._episode, failed, rule))

    async def close(self) -> None:
        """End the episode; a second call does nothing. There is nothing to close in a process that died."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._place.host.close(self._episode)
        except _LOST:
            pass
        except asyncio.CancelledError:
            self._place.stuck = True
            raise
        finally:
            self._pool.left(self._place)

    async def _asked(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except UnknownEpisodeError as error:
            raise HostedEnvironmentError(self._place.died or str(error)) from error
        except _LOST as error:
            self._place.died = how_it_died(error)
            raise HostedEnvironmentError(self._place.died) from error


def how_it_died(error: BaseException) -> str:
    """One line, with the end of the process's log."""
    line = " ".join(str(error.args[0] if error.args else error).split())
    tail = " ".join(getattr(error, "log_tail", "").split())
    shown = f"; the end of its log: {tail[-_LOG_TAIL:]}" if tail else "; its log is empty"
    return f"the environment's process died: {line}{shown}"
