"""The coordinator of an episode: an actor that plays it, says where it stands, and can be stopped."""

from __future__ import annotations

from collections.abc import Mapping

from tinker_actors.actors import Actor, ActorRef, concurrent
from tinker_actors.coordinator.clock import EpisodeClock
from tinker_actors.coordinator.episode import episode_protocol
from tinker_actors.coordinator.limits import EpisodeLimits
from tinker_actors.coordinator.protocol import EpisodeProtocol, EpisodeState
from tinker_actors.data import Episode, Task
from tinker_actors.environments import Agent, Environment, Playable
from tinker_actors.environments.actors import ActorAgent, ActorEnvironment
from tinker_actors.errors import EpisodeError


class EpisodeCoordinator(Actor):
    """Plays an episode, whose environment and agents may be objects of its process or actors anywhere.

        coordinator = await mesh.spawn(EpisodeCoordinator)
        episode = await coordinator.play(environment, {"x": agent, "o": far_agent}, task=task, id="e-1")

    It plays one episode at a time, and another one afterwards. Stopping it ends its episode and no other: the
    environment is closed, the agents hear of it, and whoever waits for the episode gets an `ActorStoppedError`.
    """

    def __init__(self) -> None:
        self._protocol: EpisodeProtocol | None = None
        self._busy: str | None = None  # the episode that is played

    @concurrent
    async def play(
        self,
        environment: Environment | Playable | ActorRef,
        agents: Mapping[str, Agent | ActorRef],
        *,
        task: Task,
        id: str,
        seed: int | None = None,
        limits: EpisodeLimits | None = None,
        clock: EpisodeClock | None = None,
    ) -> Episode:
        """Play one episode to its end, whatever that is; see `run_episode`.

        Args:
            environment: A fresh instance, or the ref of an `EnvironmentActor`; closed here.
            agents: By seat; the ref of an actor that is an `Agent` stands for a seat that is not trained.
            task: Its seed goes to `reset`.
            id: The episode's id.
            seed: The episode's own.
            limits: Its limits.
            clock: Keeps them.

        Raises:
            ConfigError: The agents don't fit the seats.
            EpisodeError: Another episode is being played.
        """
        if self._busy is not None:
            raise EpisodeError(f"episode {id!r} came while {self._busy!r} is played; each has a coordinator of its own")
        self._busy = id
        try:
            if isinstance(environment, ActorRef):
                environment = await ActorEnvironment.of(environment)
            players = {
                seat: ActorAgent(ref=agent) if isinstance(agent, ActorRef) else agent for seat, agent in agents.items()
            }
            self._protocol = episode_protocol(
                environment, players, task=task, id=id, seed=seed, limits=limits, clock=clock
            )
            return await self._protocol.run()
        finally:
            self._busy = None

    @concurrent
    async def cancel(self, cause: str) -> bool:
        """End the present episode as failed, with this cause; False if there is none to end."""
        return self._protocol is not None and self._protocol.stop(cause)

    @concurrent
    async def state(self) -> EpisodeState | None:
        """Where the present episode stands, or the last one; None before the first."""
        return None if self._protocol is None else self._protocol.state
