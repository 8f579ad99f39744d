"""The rollout worker: an actor that plays episodes, usually in a process of its own. It never loads torch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from tinker_actors.actors import Actor, concurrent
from tinker_actors.actors.failures import text_of
from tinker_actors.coordinator import (
    EpisodeClock,
    EpisodeProtocol,
    EpisodeState,
    describe_error,
    episode_protocol,
    failed_episode,
)
from tinker_actors.data import Episode
from tinker_actors.environments import Agent, EnvironmentSpec, Instances, Isolation, LiveEnvironment, isolation_of
from tinker_actors.environments.outside import EndpointServer
from tinker_actors.errors import ConfigError
from tinker_actors.models.catalogue import load_tokenizer
from tinker_actors.models.rendering import load_renderer
from tinker_actors.rollouts.lockstep import EpisodeSampler
from tinker_actors.rollouts.plans import Assignment, Rollout
from tinker_actors.rollouts.pools import EnvironmentPool, HostedEnvironment
from tinker_actors.rollouts.seats import PolicySeat, agent_for
from tinker_actors.rollouts.tracebacks import Tracebacks

FLUSH = 0.01
"""Seconds for which finished episodes wait for others, to share a message."""


class RolloutWorker(Actor):
    """Plays the episodes of assignments, many at a time; the coordinator of each of them.

    The episodes of an assignment run as tasks of one event loop, so that their requests reach the sampler together.

    Args:
        environment: What to play.
        tokenizer: The base model's name, for its tokenizer.
        chat_template: As `load_renderer` takes it.
        max_concurrency: Episodes at a time, over all assignments.
        isolation: Where the environment's methods run; None for what its class says.
        environment_nodes: For "process": the nodes of the mesh that hold the instances, which nothing else may use.
    """

    def __init__(
        self,
        *,
        environment: EnvironmentSpec,
        tokenizer: str,
        chat_template: str | None = None,
        max_concurrency: int = 256,
        isolation: Isolation | None = None,
        environment_nodes: Sequence[int] = (),
    ) -> None:
        if max_concurrency < 1:
            raise ConfigError(f"max_concurrency is {max_concurrency}; at least 1 is needed")
        self._spec = environment
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._slots = asyncio.Semaphore(max_concurrency)
        self._playing: dict[str, EpisodeProtocol] = {}
        self._tracebacks = Tracebacks()
        self._isolation: Isolation | None = isolation
        self._nodes = tuple(environment_nodes)

    async def on_start(self) -> None:
        """Load the environment and the tokenizer; start the hosts of instances that live elsewhere.

        Raises:
            ConfigError: They are to live elsewhere, and no node is named.
        """
        factory = self._spec.load()
        where = isolation_of(factory.environment, self._isolation)
        self._pool: EnvironmentPool | None = None
        if where == "process":
            if not self._nodes:
                raise ConfigError(f"isolation of {factory.name} is 'process'; environment_nodes are needed")
            self._pool = await EnvironmentPool.start(self.mesh, factory, self._nodes)
        self._instances = Instances(factory, factory.environment, where="inline" if where == "inline" else "thread")
        self._renderer = load_renderer(load_tokenizer(self._tokenizer), self._chat_template)
        self._endpoint = EndpointServer()

    async def on_stop(self) -> None:
        """Close the instances that no episode uses, and the endpoint."""
        await self._instances.close()
        await self._endpoint.close()

    @concurrent
    async def ready(self) -> None:
        """Answers once the worker can play."""

    @concurrent
    async def episodes(self) -> tuple[EpisodeState, ...]:
        """Where the episodes under way stand."""
        return tuple(protocol.state for protocol in self._playing.values())

    @concurrent
    async def cancel(self, id: str, cause: str) -> bool:
        """End one episode as failed, with this cause; False if it isn't under way."""
        return id in self._playing and self._playing[id].stop(cause)

    @concurrent
    async def run(self, assignment: Assignment) -> AsyncIterator[tuple[Episode, ...]]:
        """Play the assignment; yields episodes as they end, each once, in no particular order.

        Raises:
            ConfigError: The seats don't fit the environment.
        """
        ended: asyncio.Queue[Episode | BaseException] = asyncio.Queue()
        tasks = [asyncio.create_task(self._play(rollout, assignment, ended)) for rollout in assignment.rollouts]
        left = len(tasks)
        try:
            while left:
                batch = [await ended.get()]
                if len(batch) < left:
                    await asyncio.sleep(FLUSH)
                while not ended.empty():
                    batch.append(ended.get_nowait())
                left -= len(batch)
                for outcome in batch:
                    if isinstance(outcome, BaseException):
                        raise outcome
                yield tuple(outcome for outcome in batch if isinstance(outcome, Episode))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _play(
        self, rollout: Rollout, assignment: Assignment, ended: asyncio.Queue[Episode | BaseException]
    ) -> None:
        # What the protocol doesn't make data of is a fault of the assignment or of ours: it goes to whoever asked.
        try:
            async with self._slots:
                ended.put_nowait(self._shortened(await self._episode(rollout, assignment)))
        except Exception as error:  # handed to whoever asked for the assignment
            ended.put_nowait(error)

    def _shortened(self, episode: Episode) -> Episode:
        """The episode without its traceback, if another one has told of the same error."""
        if episode.traceback is None or self._tracebacks.is_new(episode.traceback):
            return episode
        return replace(episode, traceback=None)

    async def _episode(self, rollout: Rollout, assignment: Assignment) -> Episode:
        # The boundary to the environment's constructor, which is user code too.
        try:
            live = await self._environment(rollout, assignment)
        except Exception as error:  # user code: a failed episode is data
            line = f"{rollout.task.environment}: constructor: {describe_error(error)}"
            return failed_episode(task=rollout.task, id=rollout.id, error=line, traceback=text_of(error))
        seats, sampler, clock = assignment.line_ups[rollout.line_up], None, EpisodeClock()
        if assignment.gate is not None:
            sampler = EpisodeSampler(assignment.gate, rollout.cohort, rollout.id, clock)
            seats = {
                seat: replace(spec, sampler=sampler) if isinstance(spec, PolicySeat) else spec
                for seat, spec in seats.items()
            }
        agents = {
            seat: agent_for(
                spec, seat=seat, live=live, renderer=self._renderer, seed=rollout.seed, endpoint=self._endpoint
            )
            for seat, spec in seats.items()
        }
        try:
            protocol = self._playing[rollout.id] = episode_protocol(
                live, agents, task=rollout.task, id=rollout.id, limits=assignment.limits, clock=clock
            )
            return _with_metrics(await protocol.run(), agents)
        finally:
            self._playing.pop(rollout.id, None)
            if sampler is not None:
                sampler.leave()

    async def _environment(self, rollout: Rollout, assignment: Assignment) -> LiveEnvironment | HostedEnvironment:
        """What the episode is played with: an instance of this process, or of one of the pool's."""
        luck, evaluating = rollout.seed, assignment.evaluating
        if self._pool is not None:
            return await self._pool.open(luck=luck, evaluating=evaluating, seconds=assignment.limits.turn_seconds)
        return LiveEnvironment(self._instances.take(), luck=luck, evaluating=evaluating)


def _with_metrics(episode: Episode, agents: Mapping[str, Agent]) -> Episode:
    """The episode with its agents' numbers; where several have such, each under the name of its seat too."""
    told = {seat: agent.metrics for seat, agent in agents.items() if agent.metrics}
    if not told:
        return episode
    own = {
        name if len(told) == 1 else f"{name}/{seat}": value
        for seat, numbers in told.items()
        for name, value in numbers.items()
    }
    return replace(episode, metrics={**own, **episode.metrics})
