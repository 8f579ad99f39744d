"""What to collect, as plain data: which rollouts, who plays, within which limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tinker_actors.coordinator import EpisodeLimits
from tinker_actors.data import Task, derive_seed
from tinker_actors.errors import ConfigError
from tinker_actors.rollouts.seats import Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One episode to play.

    Attributes:
        id: Unique in the run; the episode bears it.
        task: Shared by the group.
        seed: The episode's own: the environment's luck and every turn's sampling derive from it, and from nothing
            that depends on which worker plays it or when.
        cohort: Names the episodes that are sampled in lockstep with it, where the plan has a gate.
    """

    id: str
    task: Task
    seed: int
    cohort: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Rollouts for one worker.

    Attributes:
        rollouts: Played concurrently.
        seats: Who plays, by the environment's seats.
        limits: Of each episode.
        evaluating: Whether the episodes belong to an evaluation.
        gate: Ref of the `Gate` through which policies are asked; None to ask samplers directly.
    """

    rollouts: tuple[Rollout, ...]
    seats: Mapping[str, Seat]
    limits: EpisodeLimits
    evaluating: bool = False
    gate: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """The groups of one phase.

    Attributes:
        groups: The rollouts of each group.
        seats: Who plays, by the environment's seats.
        limits: Of each episode.
        evaluating: Whether the episodes belong to an evaluation; environments hear of it.
        gate: Ref of the `Gate` at which the rollouts' cohorts are open; None where they are not in lockstep.
    """

    groups: tuple[tuple[Rollout, ...], ...]
    seats: Mapping[str, Seat]
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    evaluating: bool = False
    gate: Any = None

    def __post_init__(self) -> None:
        ids = [rollout.id for rollout in self.rollouts]
        if len(set(ids)) != len(ids):
            twice = next(name for name in ids if ids.count(name) > 1)
            raise ConfigError(f"rollout id {twice!r} stands twice in the plan; ids are unique")
        if any(len({rollout.task for rollout in group}) != 1 for group in self.groups):
            raise ConfigError("a group of the plan is empty or mixes tasks; its rollouts share one task")

    @property
    def rollouts(self) -> tuple[Rollout, ...]:
        """All of them, group by group."""
        return tuple(rollout for group in self.groups for rollout in group)


def plan_groups(
    *,
    environment: str,
    run_seed: int,
    phase: str,
    step: int,
    groups: int,
    group_size: int,
    seats: Mapping[str, Seat],
    limits: EpisodeLimits | None = None,
    tasks: Sequence[int] | None = None,
    same_every_step: bool = False,
    evaluating: bool = False,
    gate: Any = None,
    cohort: Literal["step", "group"] = "step",
) -> RolloutPlan:
    """Plan a phase. Everything derives from its arguments, so that the same call gives the same rollouts.

    Args:
        environment: The environment's name.
        run_seed: The run's.
        phase: Such as "train" or "eval"; tasks and luck of different phases differ.
        step: The run's step.
        groups: How many.
        group_size: Episodes of each.
        seats: Who plays.
        limits: Of each episode.
        tasks: The task seeds, one per group; derived from the other arguments if not given.
        same_every_step: Let tasks and luck not depend on the step, so that evaluations can be compared.
        evaluating: Whether the episodes belong to an evaluation; environments hear of it.
        gate: As in `RolloutPlan`.
        cohort: Whether all rollouts of the phase are one cohort, or those of each group.

    Raises:
        ConfigError: The numbers don't fit.
    """
    if groups < 1 or group_size < 1:
        raise ConfigError(f"{groups} groups of {group_size} episodes were planned; at least 1 of each is needed")
    if tasks is not None and len(tasks) != groups:
        raise ConfigError(f"{len(tasks)} tasks were given for {groups} groups; one each is needed")
    when = 0 if same_every_step else step
    planned: list[tuple[Rollout, ...]] = []
    for group in range(groups):
        seed = derive_seed(run_seed, phase, "task", when, group) if tasks is None else tasks[group]
        task = Task(environment=environment, seed=seed)
        planned.append(
            tuple(
                Rollout(
                    id=f"{phase}-{step}-{group}-{index}",
                    task=task,
                    seed=derive_seed(run_seed, phase, "episode", when, group, index),
                    cohort=f"{phase}-{step}" if cohort == "step" else f"{phase}-{step}-{group}",
                )
                for index in range(group_size)
            )
        )
    return RolloutPlan(
        groups=tuple(planned), seats=seats, limits=limits or EpisodeLimits(), evaluating=evaluating, gate=gate
    )
