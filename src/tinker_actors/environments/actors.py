"""Environments and agents that are actors, in this process or another: what a coordinator holds in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinker_actors.actors import Actor
from tinker_actors.data import Message, ToolList, Trajectory
from tinker_actors.environments.agents import Action, Agent
from tinker_actors.environments.live import LiveEnvironment
from tinker_actors.environments.loading import EnvironmentSpec
from tinker_actors.environments.returns import Outcome
from tinker_actors.environments.rules import Forfeit


class EnvironmentActor(Actor):
    """One instance of an environment, for one episode.

    Args:
        spec: What to load, where the actor lives.
        luck: Seeds its `rng`.
        evaluating: Whether the episode belongs to an evaluation.
    """

    def __init__(self, spec: EnvironmentSpec, *, luck: int, evaluating: bool = False) -> None:
        self._spec, self._luck, self._evaluating = spec, luck, evaluating

    async def on_start(self) -> None:
        """Load and construct it."""
        self._live = LiveEnvironment(self._spec.load()(), luck=self._luck, evaluating=self._evaluating)

    async def on_stop(self) -> None:
        """Close it, unless its episode has."""
        await self._live.close()

    async def facts(self) -> tuple[str, tuple[str, ...], int]:
        """Its name, seats and turn limit."""
        return self._live.name, self._live.seats, self._live.max_turns

    async def reset(self, seed: int) -> tuple[Mapping[str, tuple[Message, ...]], dict[str, ToolList]]:
        """See `LiveEnvironment.reset`; with its `tools`."""
        return await self._live.reset(seed), self._live.tools

    async def step(self, actions: dict[str, str]) -> Outcome:
        """See `LiveEnvironment.step`."""
        return await self._live.step(actions)

    async def forfeit(self, failed: tuple[str, ...], rule: Forfeit | None) -> Mapping[str, float] | None:
        """See `LiveEnvironment.forfeit`."""
        return await self._live.forfeit(failed, rule)

    async def demonstrate(self, seat: str) -> str:
        """See `LiveEnvironment.demonstrate`."""
        return await self._live.demonstrate(seat)

    async def close(self) -> None:
        """Close it; a second call does nothing."""
        await self._live.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorEnvironment:
    """An `EnvironmentActor` as a coordinator plays it. Made by `of`.

    Attributes:
        ref: Ref of the actor.
        name: The environment's name.
        seats: Its seats.
        max_turns: Its turn limit.
        tools: See `Playable`.
    """

    ref: Any
    name: str
    seats: tuple[str, ...]
    max_turns: int
    tools: dict[str, ToolList] = field(default_factory=dict[str, ToolList])

    @classmethod
    async def of(cls, ref: Any) -> ActorEnvironment:
        """The environment behind a ref."""
        name, seats, max_turns = await ref.facts()
        return cls(ref=ref, name=name, seats=tuple(seats), max_turns=max_turns)

    async def reset(self, seed: int) -> Mapping[str, tuple[Message, ...]]:
        """See `Playable`."""
        observations, tools = await self.ref.reset(seed)
        self.tools.update(tools)
        return observations

    async def step(self, actions: dict[str, str]) -> Outcome:
        """See `Playable`."""
        return await self.ref.step(actions)

    async def forfeit(self, failed: tuple[str, ...], rule: Forfeit | None) -> Mapping[str, float] | None:
        """See `Playable`."""
        return await self.ref.forfeit(failed, rule)

    async def close(self) -> None:
        """See `Playable`."""
        await self.ref.close()


@dataclass(frozen=True, kw_only=True)
class ActorAgent(Agent):
    """An agent that is an actor, wherever it runs: a subclass of both `Agent` and `Actor`.

        class Far(Agent, Actor):
            async def act(self, messages): ...

        agents = {"x": ActorAgent(ref=await mesh.spawn(Far, node=1))}

    Attributes:
        ref: Ref of the actor.
        policy: Id of the policy that plays.
        trainable: Whether its turns may enter datums and statistics.
    """

    ref: Any
    policy: str | None = None
    trainable: bool = False

    async def equip(self, tools: ToolList) -> None:
        """Tell the actor."""
        await self.ref.equip(tools)

    async def act(self, messages: Sequence[Message]) -> Action | str:
        """Ask the actor."""
        return await self.ref.act(tuple(messages))

    async def finish(self, trajectory: Trajectory, error: str | None) -> None:
        """Tell the actor."""
        await self.ref.finish(trajectory, error)
