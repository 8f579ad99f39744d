"""The RL loop: rollout, update, publish, with the global barrier between the phases."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from tinker_actors.algorithms import Aggregation, PolicyBatch, estimator, policy_batches
from tinker_actors.coordinator import Phase as BarrierPhase
from tinker_actors.coordinator import PhaseBarrier
from tinker_actors.data import Episode
from tinker_actors.errors import RunError
from tinker_actors.policies import Snapshot
from tinker_actors.rollouts import Collected, rollout_metrics
from tinker_actors.sampling import Sampler, SamplingParams
from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.crew import Crew
from tinker_actors.scheduler.evaluation import policy_seats
from tinker_actors.scheduler.observer import Phase
from tinker_actors.scheduler.reference import Reference
from tinker_actors.training import AdamParams, OptimStepResult, Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step did.

    Attributes:
        step: Update steps done, this one included.
        snapshot: The snapshot published at its end.
        metrics: Named finite numbers.
        episodes: What was played.
    """

    step: int
    snapshot: Snapshot
    metrics: dict[str, float]
    episodes: tuple[Episode, ...]


class Learner:
    """Takes one policy through the phases of each step.

    Args:
        crew: The run's actors.
        trainer: Holds the policy.
        sampler: Serves its snapshots.
        snapshot: The newest one.
        reference: What a KL penalty refers to.
    """

    def __init__(
        self, crew: Crew, trainer: Trainer, sampler: Sampler, snapshot: Snapshot, reference: Reference | None = None
    ) -> None:
        self.snapshot = snapshot
        self._crew = crew
        self._trainer = trainer
        self._sampler = sampler
        self._reference = reference
        self._policy = snapshot.policy_id
        self._barrier = PhaseBarrier([self._policy])
        self._rounds = 0

    async def step(self, step: int) -> StepResult:
        """Collect, update, publish.

        Args:
            step: The step's number, from 1.

        Raises:
            RunError: Every episode failed.
        """
        config, observer = self._crew.config, self._crew.observer
        began = time.perf_counter()
        observer.phase(Phase.ROLLOUT, step, config.trainer.steps)
        collected = await self._roll_out(step)
        await self._barrier.finish(self._policy, BarrierPhase.ROLLOUT, self._rounds)
        rolled_out = time.perf_counter()
        observer.phase(Phase.UPDATE, step, config.trainer.steps)
        update = await self._update(step, collected)
        updated = time.perf_counter()
        observer.phase(Phase.PUBLISH, step, config.trainer.steps)
        self.snapshot = await self._trainer.publish(self._policy)
        await self._crew.announce(self.snapshot, self._sampler)
        await self._barrier.finish(self._policy, BarrierPhase.UPDATE, self._rounds)
        self._rounds += 1
        played = rollout_metrics(collected.groups, trainer_step=step - 1)
        metrics = {
            **played,
            "retried": float(collected.retried),
            "late": float(collected.late),
            "workers_lost": float(collected.lost),
            "tokens_per_second": played["action_tokens"] / max(collected.seconds, 1e-9),
            "seconds_rollout": rolled_out - began,
            "seconds_update": updated - rolled_out,
            "seconds_publish": time.perf_counter() - updated,
            "seconds": time.perf_counter() - began,
            **update,
        }
        return StepResult(step=step, snapshot=self.snapshot, metrics=metrics, episodes=collected.episodes)

    async def _roll_out(self, step: int) -> Collected:
        rollouts = self._crew.config.rollouts
        params = SamplingParams(max_tokens=rollouts.max_tokens, temperature=rollouts.temperature, stop=rollouts.stop)
        seats = policy_seats(self._crew.environment.environment, self._sampler, self.snapshot, params)
        collected = await self._crew.play(
            "train",
            step=step,
            groups=rollouts.tasks_per_step,
            group_size=rollouts.group_size,
            seats=seats,
            vary=rollouts.filter == "varied_rewards",
        )
        if len(collected.failures) == len(collected.episodes):
            raise RunError(
                f"all {len(collected.episodes)} episodes of step {step} failed: {collected.failures[0].error}"
            )
        return collected

    async def _update(self, step: int, collected: Collected) -> dict[str, float]:
        config = self._crew.config
        batch = policy_batches(
            collected.groups,
            estimator(config.algorithm.name),
            _aggregation(config),
            constant=self._constant(),
            keep_flat=bool(config.kl.coefficient or config.algorithm.entropy_coefficient),
        )[self._policy]
        found = {
            "groups": float(batch.groups),
            "groups_flat": float(batch.flat_groups),
            "learning_rate": learning_rate(config, step),
            "grad_norm": 0.0,
            "kl": 0.0,
        }
        if self._reference and batch.datums:
            datums, found["kl_reference"] = await self._reference.applied(batch.datums)
            batch = replace(batch, datums=datums)
        for _ in range(config.trainer.epochs if batch.datums else 0):
            found |= await self._optimise(batch, found["learning_rate"])
        return found

    async def _optimise(self, batch: PolicyBatch, rate: float) -> dict[str, float]:
        settings = self._crew.config.trainer
        result = await self._trainer.forward_backward(self._policy, batch.datums, self._crew.config.loss_config())
        params = AdamParams(
            learning_rate=rate,
            beta1=settings.beta1,
            beta2=settings.beta2,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            grad_clip_norm=settings.grad_clip_norm or None,
        )
        done: OptimStepResult = await self._trainer.optim_step(self._policy, params)
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


def learning_rate(config: RunConfig, step: int) -> float:
    """The learning rate of a step, counted from 1: rises linearly over the warm-up steps, then stays."""
    settings = config.trainer
    return settings.learning_rate * min(1.0, step / max(settings.warmup_steps, 1))


def _aggregation(config: RunConfig) -> Aggregation:
    named = config.algorithm.aggregation
    return named or ("constant" if config.algorithm.name == "dr_grpo" else "token_mean")
