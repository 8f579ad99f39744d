"""The actors of a run and what the phases ask of them together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tinker_actors.actors import Mesh, Restarted, RestartPolicy
from tinker_actors.coordinator import EpisodeLimits
from tinker_actors.environments import EnvironmentFactory
from tinker_actors.policies import PolicyRegistry, Snapshot, SnapshotStore
from tinker_actors.rollouts import (
    Collected,
    CollectEvent,
    EpisodesDone,
    RolloutPlan,
    RolloutWorker,
    Seat,
    collect,
    collect_kept,
    plan_groups,
)
from tinker_actors.sampling import Sampler
from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.observer import RunObserver
from tinker_actors.scheduler.run_folder import RunFolder
from tinker_actors.training import Trainer

# an environment that kills its process every few seconds is broken; one that a person killed is not
_WORKER_RESTARTS = RestartPolicy.on_failure(max_restarts=20, within=60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """The rollout workers, and the trainer and sampler over the run's base model, which share its weights."""

    mesh: Mesh
    config: RunConfig
    folder: RunFolder
    observer: RunObserver
    environment: EnvironmentFactory
    workers: tuple[RolloutWorker, ...]
    registry: PolicyRegistry

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
        workers = [
            await mesh.spawn(
                RolloutWorker,
                environment=environment.spec,
                tokenizer=config.model.name,
                chat_template=config.model.chat_template,
                name=f"rollout-worker-{number}",
                node=number if config.rollouts.workers else 0,
                restart=_WORKER_RESTARTS,
            )
            for number in range(1, max(config.rollouts.workers, 1) + 1)
        ]
        registry = await mesh.spawn(PolicyRegistry, name="policies", node=0)
        return cls(
            mesh=mesh,
            config=config,
            folder=folder,
            observer=observer,
            environment=environment,
            workers=tuple(workers),
            registry=registry,
        )

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Within it, the observer hears of every worker that is started again or ends."""
        watchers = [asyncio.create_task(self._watch(worker)) for worker in self.workers]
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

    async def spawn_trainer(self, base_model: str) -> Trainer:
        """A trainer over a base model, in this process."""
        return await self.mesh.spawn(
            Trainer,
            base_model=base_model,
            store=str(self.folder.policies),
            threads=self.config.trainer.threads,
            node=0,
        )

    async def spawn_sampler(self, base_model: str) -> Sampler:
        """A sampler over a base model, in this process: it shares the trainer's base weights."""
        return await self.mesh.spawn(
            Sampler,
            base_model=base_model,
            store=str(self.folder.policies),
            context_length=self.config.model.context_length,
            node=0,
        )

    async def play(
        self, phase: str, *, step: int, groups: int, group_size: int, seats: Mapping[str, Seat], vary: bool = False
    ) -> Collected:
        """Collect the episodes of a phase; the observer hears of progress, lost workers and failed episodes.

        Args:
            phase: Names the rollouts and their seeds; those of "eval" are the same in every step.
            step: The run's step.
            groups: How many.
            group_size: Episodes of each.
            seats: Who plays.
            vary: Replace groups whose rewards are all equal.

        Raises:
            RunError: All workers are gone, or too few groups vary.
        """
        rollouts = self.config.rollouts

        def plan(round: int) -> RolloutPlan:
            return plan_groups(
                environment=self.environment.name,
                run_seed=self.config.seed,
                phase=f"{phase}.{round}" if round else phase,
                step=step,
                groups=groups,
                group_size=group_size,
                seats=seats,
                limits=EpisodeLimits(turn_seconds=rollouts.turn_timeout, episode_seconds=rollouts.episode_timeout),
                same_every_step=phase == "eval",
                evaluating=phase == "eval",
            )

        if vary:
            collected = await collect_kept(
                self.workers, plan, wanted=groups, max_rounds=rollouts.max_rounds, on_event=self._tell
            )
        else:
            collected = await collect(self.workers, plan(0), on_event=self._tell)
        if collected.failures:
            self.observer.note(f"{len(collected.failures)} episodes failed, such as: {collected.failures[0].error}")
        return collected

    async def announce(self, snapshot: Snapshot, sampler: Sampler) -> None:
        """Make a snapshot the one that is served, and drop old ones from the disk."""
        await self.registry.announce(snapshot)
        await sampler.refresh([snapshot.handle])
        store, keep = SnapshotStore(self.folder.policies), self.config.checkpoints.keep_snapshots
        for handle in await asyncio.to_thread(store.prune, snapshot.policy_id, keep_last=keep):
            await self.registry.retire(handle)

    def _tell(self, event: CollectEvent) -> None:
        if isinstance(event, EpisodesDone):
            self.observer.progress(event.done, event.total)
        else:
            self.observer.note(f"{event.worker} was lost ({event.cause}); {event.unfinished} episodes are played again")


def _first_line(reason: BaseException | None) -> str:
    return "by itself" if reason is None else str(reason).partition("\n")[0]
