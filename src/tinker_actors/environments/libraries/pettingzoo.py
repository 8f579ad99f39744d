"""Environments of PettingZoo, one seat for each agent: `pettingzoo:classic/tictactoe_v3` in turns, or
`pettingzoo_parallel:classic/rps_v2` at the same time.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from tinker_actors.environments.environment import Observation, Step
from tinker_actors.environments.libraries.library import required, unknown

required("gymnasium", "pettingzoo")
required("pettingzoo", "pettingzoo")

import gymnasium  # noqa: E402
import pettingzoo  # noqa: E402

from tinker_actors.environments.libraries.spaced import SpacedEnvironment  # noqa: E402


class _Pettingzoo(SpacedEnvironment):
    """What both kinds have in common."""

    kind: ClassVar[Literal["aec", "parallel"]]
    reusable: ClassVar[bool] = True

    def __init__(
        self, environment: pettingzoo.AECEnv[Any, Any, Any] | pettingzoo.ParallelEnv[Any, Any, Any], **options: Any
    ) -> None:
        self.wrapped: Any = environment
        self._agents = {str(agent): agent for agent in environment.possible_agents}
        self.seats = tuple(self._agents)
        super().__init__(**options)

    @classmethod
    def opened(cls, target: str, arguments: Mapping[str, Any]) -> Any:
        """Make an environment: `namespace/name_v0`, or `name_v0` where one namespace alone has it, of the registry;
        else the `env` or `parallel_env` of a module, `package.module`.
        """
        registry = pettingzoo.aec_registry if cls.kind == "aec" else pettingzoo.parallel_registry
        wanted = target.replace("_v", "-v")
        found = [known for known in registry if known == wanted or known.partition("/")[2] == wanted]
        if len(found) == 1:
            return pettingzoo.make(cls.kind, found[0], **arguments)
        if "." in target:
            module = importlib.import_module(target)
            return (module.env if cls.kind == "aec" else module.parallel_env)(**arguments)
        raise unknown(cls.library, target, [known.replace("-v", "_v") for known in registry])

    def observation_space(self, seat: str) -> gymnasium.Space[Any]:
        """Of a seat's observations."""
        return self.wrapped.observation_space(self._agents[seat])

    def action_space(self, seat: str) -> gymnasium.Space[Any]:
        """Of a seat's actions."""
        return self.wrapped.action_space(self._agents[seat])

    def rendered(self) -> Any:
        """What the environment renders."""
        return self.wrapped.render()

    def close(self) -> None:
        """Close the environment."""
        self.wrapped.close()


class PettingZooEnvironment(_Pettingzoo):
    """Wraps an AEC environment: its agents act one at a time.

    An agent that is done is skipped. The episode is terminated if any agent's part in it was, else truncated.

    Args:
        environment: An `AECEnv`; closed with this one.
        options: As `SpacedEnvironment` takes them.
    """

    library: ClassVar[str] = "pettingzoo"
    kind: ClassVar[Literal["aec", "parallel"]] = "aec"

    def reset(self, seed: int) -> Any:
        """Begin an episode."""
        self._begin()
        self._terminated = False
        self.wrapped.reset(seed=self.library_seed(seed))
        observation, _ = self._next()
        return observation

    def step(self, actions: Mapping[str, str]) -> Step:
        """Take the action of the seat whose turn it is."""
        taken, refused = self._understood(actions)
        if refused:
            return self._refusal(refused)
        (action,) = taken.values()
        self.wrapped.step(action)
        observation, rewards = self._next()
        return Step(
            observation=observation,
            reward=rewards,
            terminated=not observation and self._terminated,
            truncated=not observation and not self._terminated,
            metrics=self._metrics,
        )

    def _next(self) -> tuple[dict[str, Observation], dict[str, float]]:
        """The observation of the seat that acts next, none at the end; and what seats earned until then."""
        rewards: dict[str, float] = {}
        while self.wrapped.agents:
            seat = str(self.wrapped.agent_selection)
            observation, reward, terminated, truncated, info = self.wrapped.last()
            rewards[seat] = rewards.get(seat, 0.0) + float(reward)
            if not (terminated or truncated):
                return {seat: self._shown(seat, observation, info)}, rewards
            self._terminated = self._terminated or bool(terminated)
            self.wrapped.step(None)
        return {}, rewards


class PettingZooParallelEnvironment(_Pettingzoo):
    """Wraps a parallel environment: its agents act at the same time.

    Where some of them gave an action that can't be taken, those alone act again. An agent that is done acts no more.
    The episode is terminated if any agent's part in it was, else truncated.

    Args:
        environment: A `ParallelEnv`; closed with this one.
        options: As `SpacedEnvironment` takes them.
    """

    library: ClassVar[str] = "pettingzoo_parallel"
    kind: ClassVar[Literal["aec", "parallel"]] = "parallel"

    def reset(self, seed: int) -> Any:
        """Begin an episode."""
        self._begin()
        self._terminated = False
        self._held: dict[str, Any] = {}
        observations, infos = self.wrapped.reset(seed=self.library_seed(seed))
        return self._views(observations, infos)

    def step(self, actions: Mapping[str, str]) -> Step:
        """Take the actions of all seats once each has given one that can be taken."""
        taken, refused = self._understood(actions)
        self._held.update(taken)
        if refused:
            return self._refusal(refused)
        held, self._held = self._held, {}
        observations, rewards, terminated, _, infos = self.wrapped.step(
            {self._agents[seat]: action for seat, action in held.items()}
        )
        self._terminated = self._terminated or any(terminated.values())
        views = self._views(observations, infos)
        return Step(
            observation=views,
            reward={str(agent): float(reward) for agent, reward in rewards.items()},
            terminated=not views and self._terminated,
            truncated=not views and not self._terminated,
            metrics=self._metrics,
        )

    def _views(self, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> dict[str, Observation]:
        return {
            str(agent): self._shown(str(agent), observations[agent], infos.get(agent, {}))
            for agent in self.wrapped.agents
        }
