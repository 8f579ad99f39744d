"""Environments of gymnasium: `gymnasium:FrozenLake-v1`, or `GymnasiumEnvironment(gymnasium.make("FrozenLake-v1"))`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tinker_actors.environments.environment import Step
from tinker_actors.environments.libraries.library import required, unknown

required("gymnasium", "gymnasium")

import gymnasium  # noqa: E402

from tinker_actors.environments.libraries.spaced import SpacedEnvironment  # noqa: E402


class GymnasiumEnvironment(SpacedEnvironment):
    """Wraps a gymnasium environment: one seat.

    Args:
        environment: What `gymnasium.make` returns; closed with this one.
        options: As `SpacedEnvironment` takes them. Episodes are as long as the environment's registration says.
    """

    library: ClassVar[str] = "gymnasium"
    reusable: ClassVar[bool] = True

    def __init__(self, environment: gymnasium.Env[Any, Any], **options: Any) -> None:
        self.wrapped = environment
        if environment.spec is not None and environment.spec.max_episode_steps is not None:
            self.max_turns = environment.spec.max_episode_steps
        super().__init__(**options)

    @classmethod
    def opened(cls, target: str, arguments: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
        """Make a registered environment; `package.module:Name-v0` imports the module first."""
        try:
            return gymnasium.make(target, **arguments)
        except gymnasium.error.UnregisteredEnv:
            raise unknown("gymnasium", target, gymnasium.registry) from None

    def observation_space(self, seat: str) -> gymnasium.Space[Any]:
        """Of the observations."""
        return self.wrapped.observation_space

    def action_space(self, seat: str) -> gymnasium.Space[Any]:
        """Of the actions."""
        return self.wrapped.action_space

    def rendered(self) -> Any:
        """What the environment renders."""
        return self.wrapped.render()

    def reset(self, seed: int) -> Any:
        """Begin an episode."""
        self._begin()
        observation, info = self.wrapped.reset(seed=self.library_seed(seed))
        return self._shown(self.seats[0], observation, info)

    def step(self, action: str) -> Step:
        """Take the action that the text names."""
        (seat,) = self.seats
        taken, refused = self._understood({seat: action})
        if refused:
            return self._refusal(refused)
        observation, reward, terminated, truncated, info = self.wrapped.step(taken[seat])
        over = terminated or truncated
        return Step(
            observation=None if over else self._shown(seat, observation, info),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated) and not terminated,
            metrics=self._metrics,
        )

    def close(self) -> None:
        """Close the environment."""
        self.wrapped.close()
