"""The actors of a run and what the phases ask of them together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from tinker_actors.actors import Mesh, Restarted, RestartPolicy
from tinker_actors.coordinator import EpisodeLimits
from tinker_actors.environments import EnvironmentFactory
from tinker_actors.policies import PolicyRegistry, Snapshot
from tinker_actors.rollouts import (
    Collected,
    CollectEvent,
    EpisodeRaised,
    EpisodesDone,
    Gate,
    LineUp,
    PersonSeat,
    PolicySeat,
    RolloutPlan,
    RolloutWorker,
    WorkerBlocked,
    cohorts_of,
    collect,
    collect_kept,
    plan_groups,
)
from tinker_actors.rollouts.tracebacks import Tracebacks
from tinker_actors.sampling.backends import ServesSnapshots
from tinker_actors.scheduler.checks import pool_size
from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.observer import RunObserver
from tinker_actors.scheduler.run_folder import RunFolder
from tinker_actors.scheduler.training_place import spawn_trainer
from tinker_actors.training import TrainsPolicies

logger = logging.getLogger(__name__)

# an environment that kills its process every few seconds is broken; one that a person killed is not
WORKER_RESTARTS = RestartPolicy.on_failure(max_restarts=20, within=60.0)
"""How often a worker and its processes are started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """Where a worker runs: a node of the run's mesh, and those of its environments if they have processes."""

    name: str
    node: int
    environment_nodes: tuple[int, ...]


def worker_places(config: RunConfig, pool: int) -> list[WorkerPlace]:
    """Where the workers of a run are: those of rollouts, then those of evaluations, then their environments' processes.

    Args:
        config: The run.
        pool: Processes of each worker's environments.
    """
    own = config.rollouts.workers
    named = [(f"rollout-worker-{number}", number if own else 0) for number in range(1, max(own, 1) + 1)]
    named += [(f"validation-worker-{number}", own + number) for number in range(1, config.evaluation.workers + 1)]
    first = 1 + own + config.evaluation.workers
    return [
        WorkerPlace(name=name, node=node, environment_nodes=tuple(range(first + i * pool, first + (i + 1) * pool)))
        for i, (name, node) in enumerate(named)
    ]


def nodes_of(config: RunConfig, pool: int) -> int:
    """Processes of a run's mesh."""
    places = worker_places(config, pool)
    return 1 + max(max((place.node, *place.environment_nodes)) for place in places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """The rollout workers, and the trainer and sampler over the run's base model, which share its weights."""

    mesh: Mesh
    config: RunConfig
    folder: RunFolder
    observer: RunObserver
    environment: EnvironmentFactory
    workers: tuple[RolloutWorker, ...]
    validators: tuple[RolloutWorker, ...]
    registry: PolicyRegistry
    gate: Gate
    tracebacks: Tracebacks = field(default_factory=Tracebacks)

    @classmethod
    async def assemble(
        cls,
        mesh: Mesh,
        config: RunConfig,
        folder: RunFolder,
        observer: RunObserver,
        environment: EnvironmentFactory,
    ) -> Crew:
        """Start what lasts for the whole run: the registry, and a worker per child process or one in this one."""
        pool = pool_size(config, environment)
        places = worker_places(config, pool)
        workers = [
            await mesh.spawn(
                RolloutWorker,
                environment=environment.spec,
                tokenizer=config.model.name,
                chat_template=config.model.chat_template,
                name=place.name,
                node=place.node,
                max_concurrency=_most_at_once(config),
                isolation=config.environment.isolation,
                environment_nodes=place.environment_nodes,
                restart=WORKER_RESTARTS,
            )
            for place in places
        ]
        own = len(workers) - config.evaluation.workers
        registry = await mesh.spawn(PolicyRegistry, str(folder.policies), name="policies", node=0)
        gate = await mesh.spawn(Gate, name="gate", node=0)
        return cls(
            mesh=mesh,
            config=config,
            folder=folder,
            observer=observer,
            environment=environment,
            workers=tuple(workers[:own]),
            validators=tuple(workers[own:]),
            registry=registry,
            gate=gate,
        )

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Within it, the observer hears of every worker that is started again or ends."""
        watchers = [asyncio.create_task(self._watch(worker)) for worker in (*self.workers, *self.validators)]
        try:
            yield
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    async def _watch(self, worker: RolloutWorker) -> None:
        async for event in self.mesh.watch(worker):
            what = "was started again" if isinstance(event, Restarted) else "ended"
            self.observer.note(f"{event.ref.address.name} {what}: {_first_line(event.reason)}")

    async def spawn_trainer(self, base_model: str) -> TrainsPolicies:
        """What trains policies over a base model."""
        return await spawn_trainer(
            self.mesh,
            self.config.trainer,
            base_model=base_model,
            store=str(self.folder.policies),
            device=self.config.model.device,
        )

    async def spawn_sampler(self, base_model: str) -> ServesSnapshots:
        """What serves snapshots over a base model; this package's own sampler shares the trainer's base weights."""
        return await self.config.sampler.spawn(
            self.mesh, self.config, base_model=base_model, store=str(self.folder.policies)
        )

    async def play(
        self,
        phase: str,
        *,
        step: int,
        groups: int,
        group_size: int,
        seats: LineUp | Callable[[str], Sequence[LineUp]],
        vary: bool = False,
        shown: Callable[[], bool] = lambda: True,
    ) -> Collected:
        """Collect the episodes of a phase; the observer hears of progress, lost workers and failed episodes.

        Args:
            phase: Names the rollouts and their seeds; those of "eval" are the same in every step.
            step: The run's step.
            groups: How many.
            group_size: Episodes of each.
            seats: Who plays: the same in all groups, or a line-up for each of the plan that is named as `phase`.
            vary: Replace groups whose rewards are all equal.
            shown: Whether progress is told now.

        Raises:
            RunError: All workers are gone, or too few groups vary.
        """
        rollouts = self.config.rollouts

        def plan(round: int) -> RolloutPlan:
            name = f"{phase}.{round}" if round else phase
            line_ups = seats(name) if callable(seats) else [seats] * groups
            sampled = any(isinstance(seat, PolicySeat) for line_up in line_ups for seat in line_up.values())
            return plan_groups(
                environment=self.environment.name,
                run_seed=self.config.seed,
                phase=name,
                step=step,
                groups=groups,
                group_size=group_size,
                seats=line_ups,
                limits=_unhurried(rollouts.limits) if _has_people(line_ups) else rollouts.limits,
                same_every_step=phase == "eval",
                evaluating=phase == "eval",
                gate=self.gate if sampled and rollouts.lockstep != "off" else None,
                cohort="group" if rollouts.lockstep == "group" else "step",
            )

        async def play(plan: RolloutPlan) -> Collected:
            players = (phase == "eval" and self.validators) or self.workers
            return await self._play(plan, players, shown, follow=phase == "train" and rollouts.refresh == "turn")

        if vary:
            collected = await collect_kept(play, plan, wanted=groups, max_rounds=rollouts.max_rounds)
        else:
            collected = await play(plan(0))
        if collected.failures:
            self.observer.note(f"{_episodes(len(collected.failures))} failed, such as: {collected.failures[0].error}")
        return collected

    async def _play(
        self, plan: RolloutPlan, workers: Sequence[RolloutWorker], shown: Callable[[], bool], *, follow: bool
    ) -> Collected:
        """Collect a plan, with its cohorts open at the gate meanwhile if it has one."""
        if plan.gate is None:
            return await collect(
                workers, plan, retries=self.config.rollouts.retries, on_event=partial(self._tell, shown, {})
            )
        cohorts = cohorts_of(plan)
        cohort_of = {rollout.id: rollout.cohort for rollout in plan.rollouts}
        policies = [seat for seat in plan.seats if isinstance(seat, PolicySeat)]
        followed = dict.fromkeys(seat.snapshot for seat in policies if follow and seat.trainable)
        await self.gate.open(policies[0].sampler, cohorts, follow=tuple(followed))
        try:
            return await collect(
                workers, plan, retries=self.config.rollouts.retries, on_event=partial(self._tell, shown, cohort_of)
            )
        finally:
            await self.gate.close(tuple(cohorts))

    async def announce(
        self,
        snapshots: Sequence[Snapshot],
        sampler: ServesSnapshots,
        *,
        served: Sequence[str],
        saved: Sequence[str] = (),
    ) -> None:
        """Make snapshots the newest of their policies, and drop old ones from the disk.

        Args:
            snapshots: The newest, one of each policy.
            sampler: Serves them from now on.
            served: Handles of all that is played with: the sampler serves these and no others.
            saved: Handles of further ones that a resumed run would need: these stay on disk.
        """
        for snapshot in snapshots:
            await self.registry.announce(snapshot)
        await sampler.refresh(tuple(dict.fromkeys(served)))
        for snapshot in snapshots:
            await self.gate.serve(snapshot.handle)
        await self.registry.lease("run", tuple(dict.fromkeys((*served, *saved))))
        for snapshot in snapshots:
            await self.registry.expire(snapshot.policy_id, self.config.checkpoints.retention())

    def _tell(self, shown: Callable[[], bool], cohort_of: Mapping[str, str], event: CollectEvent) -> None:
        if isinstance(event, EpisodesDone):
            for episode in event.episodes if cohort_of else ():
                # its worker says so too, unless it died
                self.gate.tell.leave(cohort_of[episode.id], episode.id)
            if shown():
                self.observer.progress(event.done, event.total)
        elif isinstance(event, EpisodeRaised):
            if self.tracebacks.is_new(event.traceback):
                what = f"failed: {event.error}" if event.error else "is over, but its end raised"
                logger.warning("episode %s %s\n%s", event.episode, what, event.traceback.rstrip())
        elif isinstance(event, WorkerBlocked):
            self.observer.note(
                f"{event.worker} has not answered for {event.seconds:g} s: something blocks its event loop, as plain "
                "methods of an environment do that wait or compute for long; `blocking = True` on the class, or "
                "environment.isolation 'thread', moves them off it"
            )
        else:
            owed = f"; to be played again: {_episodes(event.unfinished)}" if event.unfinished else ""
            self.observer.note(f"{event.worker} was lost ({event.cause}){owed}")


def _episodes(number: int) -> str:
    return "1 episode" if number == 1 else f"{number} episodes"


def _first_line(reason: BaseException | None) -> str:
    return "by itself" if reason is None else str(reason).partition("\n")[0]


def _most_at_once(config: RunConfig) -> int:
    """Episodes that may have to be under way together: those of a cohort wait for each other."""
    rollouts = config.rollouts
    training = rollouts.tasks_per_step * rollouts.group_size * (1 + config.steps_ahead)
    return max(256, config.warmup.episodes_per_step, training + config.evaluation.episodes)


def _has_people(line_ups: Sequence[LineUp]) -> bool:
    return any(isinstance(seat, PersonSeat) for line_up in line_ups for seat in line_up.values())


def _unhurried(limits: EpisodeLimits) -> EpisodeLimits:
    """The limits without those of time: a person thinks as long as it takes."""
    return replace(limits, turn_seconds=None, episode_seconds=None, seat_seconds={})
