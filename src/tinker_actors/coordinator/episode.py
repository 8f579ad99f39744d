"""One episode, played in the caller's task."""

from __future__ import annotations

from collections.abc import Mapping

from tinker_actors.coordinator.clock import EpisodeClock
from tinker_actors.coordinator.limits import EpisodeLimits
from tinker_actors.coordinator.protocol import EpisodeProtocol
from tinker_actors.data import Episode, EpisodeEnd, Task, derive_seed
from tinker_actors.environments import Agent, Environment, LiveEnvironment, Playable
from tinker_actors.errors import ConfigError


async def run_episode(
    environment: Environment | Playable,
    agents: Mapping[str, Agent],
    *,
    task: Task,
    id: str,
    seed: int | None = None,
    limits: EpisodeLimits | None = None,
    clock: EpisodeClock | None = None,
) -> Episode:
    """Play one episode to its end, whatever that is.

    In every turn the acting seats act at the same time; the environment gets their actions once all are there.
    A reward belongs to the last turn of its seat. What fails is data: where a seat fails and the environment's rule, or
    the run's, makes that a loss or a draw, the episode ends `FORFEITED` with the rewards of the rule; else it ends
    `FAILED`. Either has one line that names environment, seat, turn and cause, and the turns before. However it ends,
    cancelled ones included, the environment is closed and every agent's `finish` is called exactly once.

    Args:
        environment: A fresh instance; closed here.
        agents: One per seat of the environment.
        task: Its seed goes to `reset`.
        id: The episode's id.
        seed: The episode's own, for the environment's luck; derived from `id` if not given.
        limits: None for the environment's own turn limit only.
        clock: Keeps the limits; an agent may hold it too, and stop it for waits that are not the episode's own.

    Raises:
        ConfigError: The agents don't fit the seats, or the environment's seats or turns can't be used.
    """
    return await episode_protocol(environment, agents, task=task, id=id, seed=seed, limits=limits, clock=clock).run()


def episode_protocol(
    environment: Environment | Playable,
    agents: Mapping[str, Agent],
    *,
    task: Task,
    id: str,
    seed: int | None = None,
    limits: EpisodeLimits | None = None,
    clock: EpisodeClock | None = None,
) -> EpisodeProtocol:
    """The protocol of an episode that is about to be played; arguments and errors as of `run_episode`."""
    live = environment
    if isinstance(live, Environment):
        live = LiveEnvironment(live, luck=derive_seed(id) if seed is None else seed)
    if set(agents) != set(live.seats):
        raise ConfigError(f"agents are given for seats {sorted(agents)}; {live.name} has seats {list(live.seats)}")
    limits = limits or EpisodeLimits()
    if strangers := sorted(set(limits.seat_seconds) - set(live.seats)):
        raise ConfigError(f"seat_seconds names seats {strangers}; {live.name} has seats {list(live.seats)}")
    return EpisodeProtocol(live, agents, task=task, id=id, limits=limits, clock=clock or EpisodeClock())


def failed_episode(*, task: Task, id: str, error: str, traceback: str | None = None) -> Episode:
    """An episode that failed before its first turn."""
    return Episode(id=id, task=task, end=EpisodeEnd.FAILED, trajectories=(), error=error, traceback=traceback)
