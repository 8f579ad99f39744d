"""One of the policies that learn in a run: from a step's episodes to its datums, and what its updates found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from tinker_actors.algorithms import trained_advantages
from tinker_actors.data import Datum, Group, Trajectory
from tinker_actors.policies import Snapshot
from tinker_actors.rollouts import Staleness, staleness
from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.learners import LearnerSettings
from tinker_actors.scheduler.reference import Reference
from tinker_actors.scheduler.signals import Signals
from tinker_actors.training import ForwardBackwardResult, TrainsPolicies


@dataclass(slots=True, kw_only=True)
class Lesson:
    """What a policy learns from in one step.

    Attributes:
        groups: What was played.
        datums: Its batch; empty where nothing is to be learned.
        found: Numbers about the batch and the updates on it.
        stale: How old the batch was at each update.
        advantages: Of each trajectory with what its action tokens are trained with.
    """

    groups: Sequence[Group]
    datums: Sequence[Datum]
    found: dict[str, float]
    stale: list[Staleness] = field(default_factory=list[Staleness])
    advantages: Sequence[tuple[Trajectory, Sequence[float]]] = ()


class Student:
    """A policy that learns.

    Args:
        settings: What it is made of and trained with.
        config: The run.
        trainer: Holds it.
        snapshot: Its newest.
        reference: What a KL penalty refers to.
        constant: Tokens, for the aggregation `constant`.
        baselines: What its advantage estimator remembers of earlier steps.

    Attributes:
        policy: Its id.
        snapshot: Its newest.
        trainer_step: Optimizer steps that it has behind it.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        config: RunConfig,
        trainer: TrainsPolicies,
        snapshot: Snapshot,
        reference: Reference | None,
        *,
        constant: int,
        baselines: Mapping[str, float],
    ) -> None:
        self.policy = snapshot.policy_id
        self.snapshot = snapshot
        self.trainer_step = snapshot.step
        self._settings = settings.trainer
        self._trainer = trainer
        self._reference = reference
        self._signals = Signals(config, trainer, self.policy, constant=constant, baselines=baselines)

    @property
    def baselines(self) -> dict[str, float]:
        """What the advantage estimator remembers; part of the run's exact state."""
        return self._signals.baselines

    async def lesson(self, step: int, groups: Sequence[Group]) -> Lesson:
        """What there is to learn from a step's episodes."""
        batch = await self._signals.batch(groups)
        found = {
            "groups": float(batch.groups),
            "groups_flat": float(batch.flat_groups),
            "learning_rate": self._settings.optimizer_params(step).learning_rate,
            "grad_norm": 0.0,
            "kl": 0.0,
        }
        datums = batch.datums
        if self._reference and datums:
            datums, found["kl_reference"] = await self._reference.applied(datums)
        return Lesson(groups=groups, datums=datums, found=found, advantages=trained_advantages(batch.members, datums))

    async def optimise(self, step: int, lesson: Lesson, result: ForwardBackwardResult) -> None:
        """Take an optimizer step on gradients that are there already."""
        lesson.stale.append(self._staleness(lesson))
        done = await self._trainer.optim_step(self.policy, self._settings.optimizer_params(step))
        self.trainer_step = done.step
        metrics = result.metrics
        lesson.found |= {f"train_{name}": value for name, value in metrics.items()}
        lesson.found |= {"kl": metrics["kl_k3"], "grad_norm": done.grad_norm}
        if math.isnan(done.grad_norm):  # a remote service need not say it
            del lesson.found["grad_norm"]

    def numbers(self, lesson: Lesson) -> dict[str, float]:
        """All that was found, once the updates are done."""
        stale = lesson.stale or [self._staleness(lesson)]
        return {
            **lesson.found,
            "staleness_mean": fmean(entry.mean for entry in stale),
            "staleness_max": float(max(entry.most for entry in stale)),
        }

    async def publish(self) -> None:
        """Publish the present weights."""
        self.snapshot = await self._trainer.publish(self.policy)

    def _staleness(self, lesson: Lesson) -> Staleness:
        return staleness(lesson.groups, self.policy, trainer_step=self.trainer_step)
