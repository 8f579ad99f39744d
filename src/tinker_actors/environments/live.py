"""One environment during one episode: called the way it wants to be, checked in what it returns, closed once."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from tinker_actors.data import Message, ToolList
from tinker_actors.environments.environment import Environment, Step
from tinker_actors.environments.instances import Instance
from tinker_actors.environments.returns import Outcome, Returns, WrongReturnError, shown
from tinker_actors.environments.rules import Forfeit


class Playable(Protocol):
    """What the coordinator plays: an environment during one episode, wherever it runs."""

    @property
    def name(self) -> str:
        """For error lines."""
        ...

    @property
    def seats(self) -> tuple[str, ...]:
        """The places that agents fill."""
        ...

    @property
    def max_turns(self) -> int:
        """How many steps an episode may take."""
        ...

    @property
    def tools(self) -> Mapping[str, ToolList]:
        """What agents are told of the tools of their seats, from `reset` on."""
        ...

    async def reset(self, seed: int) -> Mapping[str, tuple[Message, ...]]:
        """The first observations, by the seats that act first."""
        ...

    async def step(self, actions: dict[str, str]) -> Outcome:
        """Apply the actions of the seats that acted."""
        ...

    async def forfeit(self, failed: tuple[str, ...], rule: Forfeit | None) -> Mapping[str, float] | None:
        """What the failure of seats is worth, by seat; None to drop the episode."""
        ...

    async def close(self) -> None:
        """Release what it held; called once."""
        ...


class LiveEnvironment:
    """Drives one instance through one episode.

    Args:
        environment: A fresh instance, or one with how it is called and closed.
        luck: Seeds its `rng`.
        evaluating: Whether the episode belongs to an evaluation; otherwise what the instance says stays.

    Attributes:
        tools: What agents are told of the tools of their seats, from `reset` on.
    """

    def __init__(self, environment: Environment | Instance, *, luck: int, evaluating: bool = False) -> None:
        self._instance = environment if isinstance(environment, Instance) else Instance.single(environment)
        environment = self._instance.environment
        self._returns = Returns(environment)
        self.name = self._returns.name
        self.seats = environment.seats
        self.max_turns = environment.max_turns
        self._single = self._returns.first if len(self.seats) == 1 else None
        environment.luck = luck
        vars(environment).pop("rng", None)  # of an episode before
        environment.evaluating = evaluating or environment.evaluating
        self._environment = environment
        self.tools: dict[str, ToolList] = {}
        self._closed = False

    @property
    def environment(self) -> type[Environment]:
        """The class of the instance."""
        return type(self._environment)

    async def reset(self, seed: int) -> Mapping[str, tuple[Message, ...]]:
        """The first observations, by the seats that act first.

        Raises:
            WrongReturnError: The environment returned none, or something else.
        """
        observations = self._returns.reset(await self._instance.reset(seed))
        if type(self._environment).tool_list is not Environment.tool_list:
            self.tools = await self._tool_lists()
        return observations

    async def _tool_lists(self) -> dict[str, ToolList]:
        found: dict[str, ToolList] = {}
        for seat in self.seats:
            args = (seat,) if len(self.seats) > 1 else ()
            listed = await self._instance.call(self._environment.tool_list, *args)
            if not isinstance(listed, ToolList | None):
                raise WrongReturnError(f"{self.name}.tool_list returned {shown(listed)}; a ToolList or None is needed")
            if listed is not None:
                found[seat] = listed
        return found

    async def step(self, actions: dict[str, str]) -> Outcome:
        """Apply the actions of the seats that acted; the environment may keep the mapping.

        Raises:
            WrongReturnError: The environment didn't return a `Step` that can be used.
        """
        outcome = self.step_now(actions)
        return outcome if isinstance(outcome, Outcome) else await outcome

    def step_now(self, actions: dict[str, str]) -> Outcome | Awaitable[Outcome]:
        """As `step`; the outcome itself if the environment answers at once, which saves a coroutine in every turn."""
        action = actions if self._single is None else actions[self._single]
        if not self._instance.direct:
            return self._stepped(self._instance.call(self._environment.step, action))
        step = self._environment.step(action)
        if not isinstance(step, Step) and hasattr(step, "__await__"):
            return self._stepped(step)
        return self._returns.step(step)

    async def _stepped(self, call: Awaitable[Any]) -> Outcome:
        return self._returns.step(await call)

    async def forfeit(self, failed: tuple[str, ...], rule: Forfeit | None) -> Mapping[str, float] | None:
        """What the failure of seats is worth, by seat; None to drop the episode.

        Args:
            failed: The seats that failed.
            rule: The run's; None for the environment's own. A run that drops such episodes doesn't ask the environment.

        Raises:
            WrongReturnError: The environment returned neither None nor rewards.
        """
        if rule is Forfeit.DROP:
            return None
        call = self._instance.call
        return self._returns.forfeit(
            await call(self._environment.forfeit, failed, rule or self._environment.forfeit_rule)
        )

    async def demonstrate(self, seat: str) -> str:
        """A demonstration for the seat that is to act.

        Raises:
            ConfigError: The environment has none.
            WrongReturnError: It isn't a string.
        """
        args = (seat,) if len(self.seats) > 1 else ()
        text = await self._instance.call(self._environment.demonstrate, *args)
        if not isinstance(text, str):
            raise WrongReturnError(f"{self.name}.demonstrate returned {shown(text)}; an action's text is needed")
        return text

    async def close(self) -> None:
        """Close the environment; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        await self._instance.end()
