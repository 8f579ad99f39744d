"""The RL loop: rollout, update, publish. A step's update waits for all its rollouts; rollouts may be steps ahead."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from statistics import fmean

from tinker_actors.algorithms import PolicyBatch
from tinker_actors.coordinator import Phase as BarrierPhase
from tinker_actors.coordinator import PhaseBarrier
from tinker_actors.data import Episode
from tinker_actors.errors import RunError
from tinker_actors.policies import Snapshot
from tinker_actors.rollouts import Collected, Staleness, rollout_metrics, staleness
from tinker_actors.sampling import SamplingParams
from tinker_actors.sampling.backends import ServesSnapshots
from tinker_actors.scheduler.ahead import Ahead
from tinker_actors.scheduler.crew import Crew
from tinker_actors.scheduler.evaluation import policy_seats
from tinker_actors.scheduler.observer import Phase
from tinker_actors.scheduler.reference import Reference
from tinker_actors.scheduler.signals import Signals
from tinker_actors.training import AdamParams, OptimStepResult, Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step did.

    Attributes:
        step: Update steps done, this one included.
        snapshot: The snapshot published at its end.
        metrics: Named finite numbers.
        episodes: What was played.
        trainer_step: Optimizer steps that the policy had behind it before the step.
    """

    step: int
    snapshot: Snapshot
    metrics: dict[str, float]
    episodes: tuple[Episode, ...]
    trainer_step: int


class Learner:
    """Takes one policy through the phases of each step.

    Args:
        crew: The run's actors.
        trainer: Holds the policy.
        sampler: Serves its snapshots.
        versions: The snapshots that steps to come are played with, by the steps that they had behind them; the highest
            is the newest.
        reference: What a KL penalty refers to.
        baselines: What the advantage estimator remembers of earlier steps.
    """

    def __init__(
        self,
        crew: Crew,
        trainer: Trainer,
        sampler: ServesSnapshots,
        versions: Mapping[int, Snapshot],
        reference: Reference | None = None,
        *,
        baselines: Mapping[str, float] | None = None,
    ) -> None:
        done = max(versions)
        self.snapshot = versions[done]
        self.saved: tuple[str, ...] = ()
        """Handles of the snapshots that a resumed run would need; they stay on disk."""
        self._crew = crew
        self._trainer = trainer
        self._sampler = sampler
        self._reference = reference
        self._policy = self.snapshot.policy_id
        self._trainer_step = self.snapshot.step
        self._signals = Signals(
            crew.config, trainer, self._policy, constant=self._constant(), baselines=baselines or {}
        )
        self._barrier = PhaseBarrier([self._policy])
        self._rounds = 0
        self._awaited = 0
        self._rollouts = Ahead(
            self._roll_out, ahead=crew.config.steps_ahead, last=crew.config.trainer.steps, versions=versions
        )
        self._began = time.monotonic()
        self._published = self._began

    @property
    def bound(self) -> tuple[str, ...]:
        """Handles of the snapshots before the newest which steps under way or to come are played with."""
        return self._rollouts.bound

    @property
    def baselines(self) -> dict[str, float]:
        """What the advantage estimator remembers; part of the run's exact state."""
        return self._signals.baselines

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
        collected = played.collected
        await self._barrier.finish(self._policy, BarrierPhase.ROLLOUT, self._rounds)
        rolled_out = time.monotonic()
        observer.phase(Phase.UPDATE, step, config.trainer.steps)
        sampled_for = self._trainer_step
        update = await self._update(step, collected)
        updated = time.monotonic()
        observer.phase(Phase.PUBLISH, step, config.trainer.steps)
        await self._publish(step)
        await self._barrier.finish(self._policy, BarrierPhase.UPDATE, self._rounds)
        self._rounds += 1
        ended, before, self._published = time.monotonic(), self._published, time.monotonic()
        numbers = rollout_metrics(collected.groups)
        metrics = {
            **numbers,
            "retried": float(collected.retried),
            "late": float(collected.late),
            "workers_lost": float(collected.lost),
            "tokens_per_second": numbers["action_tokens"] / max(collected.seconds, 1e-9),
            "seconds_rollout": rolled_out - began,
            "seconds_update": updated - rolled_out,
            "seconds_publish": ended - updated,
            "seconds": ended - began,
            "seconds_ahead": max(0.0, min(played.ended, before) - played.began),
            "at_rollout_begin": played.began - self._began,
            "at_rollout_end": played.ended - self._began,
            "at_update_begin": rolled_out - self._began,
            "at_update_end": updated - self._began,
            **update,
        }
        return StepResult(
            step=step, snapshot=self.snapshot, metrics=metrics, episodes=collected.episodes, trainer_step=sampled_for
        )

    async def _publish(self, step: int) -> None:
        self.snapshot = await self._trainer.publish(self._policy)
        self._rollouts.published(step, self.snapshot)
        await self._crew.announce(self.snapshot, self._sampler, bound=self._rollouts.bound, saved=self.saved)
        self._rollouts.begin()

    async def _roll_out(self, step: int, snapshot: Snapshot) -> Collected:
        rollouts = self._crew.config.rollouts
        params = SamplingParams(max_tokens=rollouts.max_tokens, temperature=rollouts.temperature, stop=rollouts.stop)
        seats = policy_seats(self._crew.environment.environment, self._sampler, snapshot, params)
        collected = await self._crew.play(
            "train",
            step=step,
            groups=rollouts.tasks_per_step,
            group_size=rollouts.group_size,
            seats=seats,
            vary=rollouts.filter == "varied_rewards",
            shown=lambda: self._awaited == step,
        )
        if len(collected.failures) == len(collected.episodes):
            raise RunError(
                f"all {len(collected.episodes)} episodes of step {step} failed: {collected.failures[0].error}"
            )
        return collected

    async def _update(self, step: int, collected: Collected) -> dict[str, float]:
        config = self._crew.config
        batch = await self._signals.batch(collected.groups)
        params = config.trainer.optimizer_params(step)
        found = {
            "groups": float(batch.groups),
            "groups_flat": float(batch.flat_groups),
            "learning_rate": params.learning_rate,
            "grad_norm": 0.0,
            "kl": 0.0,
        }
        if self._reference and batch.datums:
            datums, found["kl_reference"] = await self._reference.applied(batch.datums)
            batch = replace(batch, datums=datums)
        stale: list[Staleness] = []
        for _ in range(config.trainer.epochs if batch.datums else 0):
            stale.append(staleness(collected.groups, self._policy, trainer_step=self._trainer_step))
            found |= await self._optimise(batch, params)
        stale = stale or [staleness(collected.groups, self._policy, trainer_step=self._trainer_step)]
        found["staleness_mean"] = fmean(entry.mean for entry in stale)
        found["staleness_max"] = float(max(entry.most for entry in stale))
        return found

    async def _optimise(self, batch: PolicyBatch, params: AdamParams) -> dict[str, float]:
        result = await self._trainer.forward_backward(self._policy, batch.datums, self._crew.config.loss_config())
        done: OptimStepResult = await self._trainer.optim_step(self._policy, params)
        self._trainer_step = done.step
        metrics = result.metrics
        return {
            **{f"train_{name}": value for name, value in metrics.items()},
            "kl": metrics["kl_k3"],
            "grad_norm": done.grad_norm,
        }

    def _constant(self) -> int:
        config = self._crew.config
        turns = self._crew.environment.environment.max_turns
        return config.algorithm.aggregation_constant or turns * config.rollouts.max_tokens
