"""The RL loop: rollout, update, publish. A step's update waits for all its rollouts; rollouts may be steps ahead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import fmean

from tinker_actors.coordinator import Phase as BarrierPhase
from tinker_actors.data import Episode, Group
from tinker_actors.errors import RunError
from tinker_actors.rollouts import Collected, policy_metrics, rollout_metrics, seat_outcomes
from tinker_actors.scheduler.ahead import Ahead, Played
from tinker_actors.scheduler.company import Company
from tinker_actors.scheduler.crew import Crew
from tinker_actors.scheduler.objectives import Pass, is_own, own_loss, own_passes
from tinker_actors.scheduler.observer import Phase
from tinker_actors.scheduler.students import Student
from tinker_actors.scheduler.versions import Version
from tinker_actors.training import ForwardBackwardResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step did.

    Attributes:
        step: Update steps done, this one included.
        version: What was published at its end.
        metrics: Named finite numbers.
        episodes: What was played; of groups that the filter dropped what failed.
        trainer_steps: Optimizer steps that each policy had behind it before the step.
        advantages: By the `id()` of a trajectory of `episodes`, what each of its action tokens was trained with.
    """

    step: int
    version: Version
    metrics: dict[str, float]
    episodes: tuple[Episode, ...]
    trainer_steps: Mapping[str, int]
    advantages: Mapping[int, Sequence[float]]


class Learner:
    """Takes all policies that learn through the phases of each step.

    Args:
        crew: The run's actors.
        company: Everyone who plays.
    """

    def __init__(self, crew: Crew, company: Company) -> None:
        self.version = company.versions[max(company.versions)]
        self.saved: tuple[str, ...] = ()
        """Handles of the snapshots that a resumed run would need; they stay on disk."""
        self._crew = crew
        self._trainer = company.trainer
        self._sampler = company.sampler
        self._casting = company.casting
        self._students = company.students
        self._frozen = tuple(company.frozen.values())
        self._coordinator = company.coordinator
        self._own_loss = own_loss(crew.config.algorithm.loss) if is_own(crew.config.algorithm.loss) else None
        self._rounds = 0
        self._awaited = 0
        self._rollouts = Ahead(
            self._roll_out, ahead=crew.config.steps_ahead, last=crew.config.trainer.steps, versions=company.versions
        )
        self._began = time.monotonic()
        self._published = self._began

    @property
    def bound(self) -> tuple[Version, ...]:
        """What steps under way or to come are played with, oldest first; the last is the newest."""
        return self._rollouts.bound

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """What each policy's advantage estimator remembers; part of the run's exact state."""
        return {student.policy: student.baselines for student in self._students}

    @asynccontextmanager
    async def ahead(self) -> AsyncGenerator[None]:
        """Within it, rollouts are played as far ahead as the configuration lets them be."""
        self._rollouts.begin()
        try:
            yield
        finally:
            await self._rollouts.stop()

    async def step(self, step: int) -> StepResult:
        """Collect, update, publish.

        Args:
            step: The step's number, from 1.

        Raises:
            RunError: Every episode failed.
        """
        config, observer = self._crew.config, self._crew.observer
        began = time.monotonic()
        observer.phase(Phase.ROLLOUT, step, config.trainer.steps)
        self._awaited = step
        played = await self._rollouts.take(step)
        groups = played.collected.groups
        await self._all(lambda student: self._finish(student, BarrierPhase.ROLLOUT))
        rolled_out = time.monotonic()
        observer.phase(Phase.UPDATE, step, config.trainer.steps)
        sampled_for = {student.policy: student.trainer_step for student in self._students}
        update, advantages = await self._update(step, groups)
        updated = time.monotonic()
        observer.phase(Phase.PUBLISH, step, config.trainer.steps)
        await self._all(self._publish)
        self._rounds += 1
        await self._announce(step, groups)
        times = (began, rolled_out, updated, time.monotonic())
        return StepResult(
            step=step,
            version=self.version,
            metrics={**self._played_metrics(played), **self._times(played, times), **update},
            episodes=(*played.collected.episodes, *played.collected.dropped_failures),
            trainer_steps=sampled_for,
            advantages=advantages,
        )

    async def _announce(self, step: int, groups: Sequence[Group]) -> None:
        """Let the rollouts that waited for the new snapshots begin."""
        snapshots = [student.snapshot for student in self._students]
        self.version = self._casting.after(
            self.version, step, groups, {snapshot.policy_id: snapshot.handle for snapshot in snapshots}
        )
        self._rollouts.published(step, self.version)
        handles = [handle for version in self._rollouts.bound for handle in version.handles]
        await self._crew.announce(snapshots, self._sampler, served=(*self._frozen, *handles), saved=self.saved)
        self._rollouts.begin()

    async def _publish(self, student: Student) -> None:
        await student.publish()
        await self._finish(student, BarrierPhase.UPDATE)

    async def _finish(self, student: Student, phase: BarrierPhase) -> None:
        await self._coordinator.finish(student.policy, phase, self._rounds)

    async def _all(self, work: Callable[[Student], Coroutine[None, None, None]]) -> None:
        """Do something for every policy at the same time; the first failure ends it for all."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for student in self._students:
                    tasks.create_task(work(student))
        except ExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__

    async def _roll_out(self, step: int, version: Version) -> Collected:
        rollouts = self._crew.config.rollouts
        collected = await self._crew.play(
            "train",
            step=step,
            groups=rollouts.tasks_per_step,
            group_size=rollouts.group_size,
            seats=lambda plan: self._casting.training(step, version, phase=plan, groups=rollouts.tasks_per_step),
            vary=rollouts.filter == "varied_rewards",
            shown=lambda: self._awaited == step,
        )
        if not any(group.valid for group in collected.groups):
            raise RunError(
                f"all {len(collected.episodes)} episodes of step {step} failed: {collected.failures[0].error}"
            )
        return collected

    async def _update(self, step: int, groups: Sequence[Group]) -> tuple[dict[str, float], dict[int, Sequence[float]]]:
        """Update every policy that has something to learn, in passes that they share.

        Returns:
            What was found, and the advantages by the `id()` of their trajectory.
        """
        config = self._crew.config
        lessons = [(student, await student.lesson(step, groups)) for student in self._students]
        due = [(student, lesson) for student, lesson in lessons if lesson.datums]
        for _ in range(config.trainer.epochs if due else 0):
            results = await self._pass([(student.policy, lesson.datums) for student, lesson in due])
            for (student, lesson), result in zip(due, results, strict=True):
                await student.optimise(step, lesson, result)
        found = {student.policy: student.numbers(lesson) for student, lesson in lessons}
        advantages = {id(entry): row for _, lesson in lessons for entry, row in lesson.advantages}
        if not config.policies:
            return found[self._students[0].policy], advantages
        return {**_over_all(list(found.values())), **_prefixed(found)}, advantages

    async def _pass(self, batches: Sequence[Pass]) -> Sequence[ForwardBackwardResult]:
        config = self._crew.config
        if self._own_loss is not None:
            return await own_passes(self._trainer, batches, self._own_loss)
        loss = config.loss_config()
        return await self._trainer.forward_backward_many([(policy, datums, loss) for policy, datums in batches])

    def _played_metrics(self, played: Played) -> dict[str, float]:
        collected = played.collected
        numbers = rollout_metrics(collected.groups)
        policies = [student.policy for student in self._students] if self._crew.config.policies else []
        return {
            **numbers,
            "failed": float(len(collected.failures)),
            **seat_outcomes(collected.groups),
            **policy_metrics(collected.groups, policies),
            "retried": float(collected.retried),
            "late": float(collected.late),
            "workers_lost": float(collected.lost),
            "tokens_per_second": numbers["action_tokens"] / max(collected.seconds, 1e-9),
        }

    def _times(self, played: Played, times: tuple[float, float, float, float]) -> dict[str, float]:
        began, rolled_out, updated, ended = times
        before, self._published = self._published, ended
        return {
            "seconds_rollout": rolled_out - began,
            "seconds_update": updated - rolled_out,
            "seconds_publish": ended - updated,
            "seconds": ended - began,
            "seconds_ahead": max(0.0, min(played.ended, before) - played.began),
            "at_rollout_begin": played.began - self._began,
            "at_rollout_end": played.ended - self._began,
            "at_update_begin": rolled_out - self._began,
            "at_update_end": updated - self._began,
        }


def _over_all(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The numbers of a step for all policies together: sums of counts, and the largest of what is watched."""
    norms = [own["grad_norm"] for own in found if "grad_norm" in own]
    referred = [own["kl_reference"] for own in found if "kl_reference" in own]
    return {
        "groups": sum(own["groups"] for own in found),
        "groups_flat": sum(own["groups_flat"] for own in found),
        **({"grad_norm": max(norms)} if norms else {}),
        "kl": max(own["kl"] for own in found),
        **({"kl_reference": max(referred)} if referred else {}),
        "staleness_mean": fmean(own["staleness_mean"] for own in found),
        "staleness_max": max(own["staleness_max"] for own in found),
    }


def _prefixed(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {f"policy/{policy}/{name}": value for policy, own in found.items() for name, value in own.items()}
