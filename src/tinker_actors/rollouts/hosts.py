"""The instance host: an actor in a process of its own that holds environments for many episodes of a rollout worker."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tinker_actors.actors import Actor, concurrent
from tinker_actors.coordinator import describe_error
from tinker_actors.data import Message, ToolList
from tinker_actors.environments import EnvironmentSpec, Forfeit, Instances, LiveEnvironment, Outcome
from tinker_actors.errors import EpisodeError

T = TypeVar("T")

_GATHER = 0.02  # seconds, where a class resets many at once: they arrive in messages of their own
_LAST_CLOSES = 2.0  # seconds that instances have to close before their process is ended for a stuck one's sake


class HostedEnvironmentError(EpisodeError):
    """An environment in another process failed.

    Attributes:
        described: One line, as for an environment of this process.
    """

    def __init__(self, described: str) -> None:
        super().__init__(described)
        self.described = described


class UnknownEpisodeError(EpisodeError):
    """The process holds no such episode: it is not the one in which the episode began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An instance that waits to be reset.

    Attributes:
        name: Its class's.
        seats: Its own.
        max_turns: Its own.
        machine: Where its process runs.
        pid: Of that process.
    """

    name: str
    seats: tuple[str, ...]
    max_turns: int
    machine: str
    pid: int


class InstanceHost(Actor):
    """Holds the instances of many episodes, each with a thread of its own, so that a stuck one holds up no other.

    Args:
        environment: Which.
    """

    def __init__(self, *, environment: EnvironmentSpec) -> None:
        self._spec = environment
        self._live: dict[str, LiveEnvironment] = {}

    async def on_start(self) -> None:
        """Load the environment."""
        factory = self._spec.load()
        self._instances = Instances(factory, factory.environment, where="thread", window=_GATHER)

    async def on_stop(self) -> None:
        """Close every instance that is left."""
        await self._close_all()

    @concurrent
    async def open(self, episode: str, luck: int, evaluating: bool) -> Opened:
        """Take an instance for an episode.

        Raises:
            HostedEnvironmentError: The constructor failed.
        """
        live = await _guarded(self._made(luck, evaluating))
        self._live[episode] = live
        return Opened(
            name=live.name,
            seats=live.seats,
            max_turns=live.max_turns,
            machine=platform.node(),
            pid=os.getpid(),
        )

    @concurrent
    async def reset(self, episode: str, seed: int) -> tuple[Mapping[str, tuple[Message, ...]], dict[str, ToolList]]:
        """As `LiveEnvironment.reset`; with its `tools`."""
        live = self._of(episode)
        return await _guarded(live.reset(seed)), live.tools

    @concurrent
    async def step(self, episode: str, actions: dict[str, str]) -> Outcome:
        """As `LiveEnvironment.step`."""
        return await _guarded(self._of(episode).step(actions))

    @concurrent
    async def demonstrate(self, episode: str, seat: str) -> str:
        """As `LiveEnvironment.demonstrate`."""
        return await _guarded(self._of(episode).demonstrate(seat))

    @concurrent
    async def forfeit(self, episode: str, failed: tuple[str, ...], rule: Forfeit | None) -> Mapping[str, float] | None:
        """As `LiveEnvironment.forfeit`."""
        return await _guarded(self._of(episode).forfeit(failed, rule))

    @concurrent
    async def close(self, episode: str) -> None:
        """End an episode; one that isn't known is over."""
        if (live := self._live.pop(episode, None)) is not None:
            await _guarded(live.close())

    @concurrent
    async def end(self) -> None:
        """End the process, and start it again where the restart policy says so: an instance in it is stuck."""
        try:
            async with asyncio.timeout(_LAST_CLOSES):
                await self._close_all()
        except TimeoutError:
            pass
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    def _of(self, episode: str) -> LiveEnvironment:
        if (live := self._live.get(episode)) is None:
            raise UnknownEpisodeError("the environment's process was started again after the episode began")
        return live

    async def _made(self, luck: int, evaluating: bool) -> LiveEnvironment:
        return LiveEnvironment(self._instances.take(), luck=luck, evaluating=evaluating)

    async def _close_all(self) -> None:
        left, self._live = list(self._live.values()), {}
        await asyncio.gather(*(live.close() for live in left), return_exceptions=True)
        await self._instances.close()


async def _guarded(call: Awaitable[T]) -> T:
    # The boundary to user code: what it raises becomes the line that describes it, which any process can read.
    try:
        return await call
    except (Exception, SystemExit) as error:
        raise HostedEnvironmentError(describe_error(error)) from error
