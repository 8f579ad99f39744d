"""Evaluation: the same held-out tasks every time, through the same rollout path as training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinker_actors.data import Episode, Task
from tinker_actors.errors import RunError
from tinker_actors.rollouts import policy_metrics, rollout_metrics, seat_outcomes
from tinker_actors.scheduler.casting import Casting
from tinker_actors.scheduler.crew import Crew
from tinker_actors.scheduler.observer import Phase
from tinker_actors.scheduler.versions import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An evaluation's result.

    Attributes:
        reward: Mean reward of an episode and seat.
        episodes: The episodes that it is the mean of.
        failed: How many failed and are not in the mean.
        metrics: What the environment reports, as `env/NAME`; with several seats, rewards and outcomes by seat and by
            policy, of the policies that play.
    """

    reward: float
    episodes: tuple[Episode, ...]
    failed: int
    metrics: Mapping[str, float]

    def worst(self) -> Episode:
        """The first episode with the least reward: the one that training should change."""
        return min(self.episodes, key=lambda episode: sum(entry.reward for entry in episode.trajectories))

    def of_task(self, task: Task) -> Episode:
        """The episode of a task, or another one if that failed."""
        return next((episode for episode in self.episodes if episode.task == task), self.episodes[0])


async def evaluate(crew: Crew, casting: Casting, version: Version, *, step: int) -> Evaluation:
    """Play the held-out episodes with the newest snapshots and tell the observer.

    Raises:
        RunError: Every episode failed.
    """
    settings = crew.config.evaluation
    crew.observer.phase(Phase.EVALUATION, step, crew.config.trainer.steps)
    collected = await crew.play(
        "eval",
        step=step,
        groups=settings.episodes,
        group_size=1,
        seats=lambda _: casting.evaluation(version),
    )
    valid = [episode for episode in collected.episodes if not episode.end.is_error]
    if not valid:
        line = f"all {settings.episodes} evaluation episodes failed: {collected.failures[0].error}"
        raise RunError(f"{line}; {crew.folder.log} has the tracebacks" if crew.tracebacks else line)
    numbers = rollout_metrics(collected.groups)
    playing = {entry.policy for episode in valid for entry in episode.trajectories if entry.trainable}
    metrics = {
        **{name: value for name, value in numbers.items() if name.startswith(("reward/", "env/"))},
        **seat_outcomes(collected.groups),
        **policy_metrics(collected.groups, [policy for policy in crew.config.policies if policy in playing]),
    }
    evaluation = Evaluation(
        reward=numbers["reward"],
        episodes=tuple(valid),
        failed=len(collected.failures),
        metrics=metrics,
    )
    if metrics:
        crew.observer.evaluated(step, evaluation.reward, "reward", metrics)
    else:
        crew.observer.evaluated(step, evaluation.reward)
    return evaluation
