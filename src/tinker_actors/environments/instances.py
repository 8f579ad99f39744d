"""Instances of an environment class: where their methods run, who resets them together, and who plays again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from tinker_actors.environments.environment import Environment, Isolation
from tinker_actors.environments.gathering import Gathering
from tinker_actors.environments.threads import CallThread
from tinker_actors.errors import ConfigError, EpisodeError


def isolation_of(environment: type[Environment], asked: Isolation | None = None) -> Isolation:
    """Where the methods of a class run: as asked, else as the class says.

    Raises:
        ConfigError: They block, and would do so on the event loop.
    """
    chosen = asked or environment.isolation or ("thread" if environment.blocking else "inline")
    if chosen == "inline" and environment.blocking:
        raise ConfigError(
            f"isolation of {environment.__name__} is 'inline', but its methods block; 'thread' or 'process' is needed"
        )
    return chosen


class Instance:
    """One instance: calls its methods where they are to run, and closes it once.

    Args:
        environment: The instance.
        where: "inline" on the event loop, or "thread" in a thread of its own.
        resets: Resets several instances together; None to reset this one alone.
        keep: Takes the instance back after an episode in which every call returned, to play another one; says whether
            it did.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        where: Literal["inline", "thread"],
        resets: Gathering[tuple[Environment, int], Any] | None = None,
        keep: Callable[[Instance], bool] | None = None,
    ) -> None:
        self.environment = environment
        self._in_thread = where == "thread"
        self._resets = resets
        self._keep = keep
        self._thread: CallThread | None = None
        self._unreturned = 0
        self._closed = False
        self._evaluating = environment.evaluating

    @classmethod
    def single(cls, environment: Environment) -> Instance:
        """For one episode, isolated as its class says as far as one process can."""
        inline = isolation_of(type(environment)) == "inline"
        return cls(environment, where="inline" if inline else "thread")

    @property
    def direct(self) -> bool:
        """Whether calls need nothing around them."""
        return not self._in_thread and self._keep is None

    async def reset(self, seed: int) -> Any:
        """Reset it, together with others where its class does that."""
        if self._resets is None:
            return await self.call(self.environment.reset, seed)
        self._unreturned += 1
        returned = await self._resets.ask((self.environment, seed))
        if isinstance(returned, BaseException):
            raise returned
        self._unreturned -= 1
        return returned

    async def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method, plain or `async`."""
        self._unreturned += 1
        if self._in_thread:
            if self._thread is None:
                self._thread = CallThread(f"environment {type(self.environment).__name__}")
            returned = await self._thread.call(method, *args)
        else:
            returned = method(*args)
        if hasattr(returned, "__await__"):
            returned = await returned
        self._unreturned -= 1
        return returned

    async def end(self) -> None:
        """The episode is over: give the instance back for another one, or close it."""
        self.environment.evaluating = self._evaluating
        if self._keep is None or self._unreturned or not self._keep(self):
            await self.close()

    async def close(self) -> None:
        """Close it; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            await self.call(self.environment.close)
        finally:
            if self._thread is not None:
                self._thread.end()


class Instances:
    """Makes the instances that episodes of one process are played with, and keeps those that can play again.

    Args:
        make: A fresh instance; may raise whatever a constructor raises.
        environment: Its class.
        where: Where the methods run.
        window: Seconds for which resets wait for others, where the class resets several together.
    """

    def __init__(
        self,
        make: Callable[[], Environment],
        environment: type[Environment],
        *,
        where: Literal["inline", "thread"],
        window: float = 0.0,
    ) -> None:
        self._make = make
        self._where: Literal["inline", "thread"] = where
        self._kept: list[Instance] = []
        self._over = False
        self._keep = self._take_back if environment.reusable else None
        self._resets: Gathering[tuple[Environment, int], Any] | None = None
        if (together := environment.reset_many) is not None:
            self._resets = Gathering(partial(_reset_together, together, where == "thread"), window=window)

    def take(self) -> Instance:
        """An instance for one episode: one that is free, else a fresh one."""
        if self._kept:
            return self._kept.pop()
        return Instance(self._make(), where=self._where, resets=self._resets, keep=self._keep)

    async def close(self) -> None:
        """Close those that are free, and from now on every other one as its episode ends."""
        self._over = True
        while self._kept:
            await self._kept.pop().close()

    def _take_back(self, instance: Instance) -> bool:
        if not self._over:
            self._kept.append(instance)
        return not self._over


async def _reset_together(
    together: Callable[..., Any], in_thread: bool, asked: Sequence[tuple[Environment, int]]
) -> Sequence[Any]:
    environments, seeds = [each for each, _ in asked], [seed for _, seed in asked]
    if in_thread:
        thread = CallThread("environment resets")
        try:
            returned = await thread.call(together, environments, seeds)
        finally:
            thread.end()
    else:
        returned = together(environments, seeds)
    if inspect.isawaitable(returned):
        returned = await returned
    if not isinstance(returned, Sequence) or isinstance(returned, str):
        raise EpisodeError(f"reset_many returned {type(returned).__name__}; a sequence of observations is needed")
    return returned
