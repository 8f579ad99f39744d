"""Evaluation: the same held-out tasks every time, through the same rollout path as training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinker_actors.data import Episode, Task
from tinker_actors.environments import Environment
from tinker_actors.errors import RunError
from tinker_actors.policies import Snapshot
from tinker_actors.rollouts import PolicySeat, Seat, rollout_metrics
from tinker_actors.sampling import SamplingParams
from tinker_actors.sampling.backends import ServesSnapshots
from tinker_actors.scheduler.crew import Crew
from tinker_actors.scheduler.observer import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An evaluation's result.

    Attributes:
        reward: Mean reward of an episode and seat.
        episodes: The episodes that it is the mean of.
        failed: How many failed and are not in the mean.
    """

    reward: float
    episodes: tuple[Episode, ...]
    failed: int

    def worst(self) -> Episode:
        """The first episode with the least reward: the one that training should change."""
        return min(self.episodes, key=lambda episode: sum(entry.reward for entry in episode.trajectories))

    def of_task(self, task: Task) -> Episode:
        """The episode of a task, or another one if that failed."""
        return next((episode for episode in self.episodes if episode.task == task), self.episodes[0])


def policy_seats(
    environment: type[Environment], sampler: ServesSnapshots, snapshot: Snapshot, params: SamplingParams
) -> Mapping[str, Seat]:
    """Every seat filled by one policy: the only one there is, or self-play."""
    seat = PolicySeat(sampler=sampler, policy=snapshot.policy_id, snapshot=snapshot.handle, params=params)
    return dict.fromkeys(environment.seats, seat)


async def evaluate(crew: Crew, sampler: ServesSnapshots, snapshot: Snapshot, *, step: int) -> Evaluation:
    """Play the held-out episodes with a snapshot and tell the observer.

    Raises:
        RunError: Every episode failed.
    """
    settings, rollouts = crew.config.evaluation, crew.config.rollouts
    crew.observer.phase(Phase.EVALUATION, step, crew.config.trainer.steps)
    params = SamplingParams(max_tokens=rollouts.max_tokens, temperature=settings.temperature, stop=rollouts.stop)
    seats = policy_seats(crew.environment.environment, sampler, snapshot, params)
    collected = await crew.play("eval", step=step, groups=settings.episodes, group_size=1, seats=seats)
    valid = [episode for episode in collected.episodes if not episode.end.is_error]
    if not valid:
        raise RunError(f"all {settings.episodes} evaluation episodes failed: {collected.failures[0].error}")
    evaluation = Evaluation(
        reward=rollout_metrics(collected.groups)["reward"],
        episodes=tuple(valid),
        failed=len(collected.failures),
    )
    crew.observer.evaluated(step, evaluation.reward)
    return evaluation
