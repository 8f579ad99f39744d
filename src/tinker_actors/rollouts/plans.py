"""What to collect, as plain data: which rollouts, who plays, within which limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

from tinker_actors.coordinator import EpisodeLimits
from tinker_actors.data import Task, derive_seed
from tinker_actors.errors import ConfigError
from tinker_actors.rollouts.seats import Seat

LineUp: TypeAlias = Mapping[str, Seat]
"""Who plays each seat of an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One episode to play.

    Attributes:
        id: Unique in the run; the episode bears it.
        task: Shared by the group.
        seed: The episode's own: the environment's luck and every turn's sampling derive from it, and from nothing
            that depends on which worker plays it or when.
        cohort: Names the episodes that are sampled in lockstep with it, where the plan has a gate.
        line_up: Which of the plan's line-ups plays it.
    """

    id: str
    task: Task
    seed: int
    cohort: str = ""
    line_up: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Rollouts for one worker.

    Attributes:
        rollouts: Played concurrently.
        line_ups: Who plays, by the environment's seats, for each number that a rollout may name.
        limits: Of each episode.
        evaluating: Whether the episodes belong to an evaluation.
        gate: Ref of the `Gate` through which policies are asked; None to ask samplers directly.
    """

    rollouts: tuple[Rollout, ...]
    line_ups: tuple[LineUp, ...]
    limits: EpisodeLimits
    evaluating: bool = False
    gate: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """The groups of one phase.

    Attributes:
        groups: The rollouts of each group.
        line_ups: Who plays, by the environment's seats; a rollout says which of them plays it.
        limits: Of each episode.
        evaluating: Whether the episodes belong to an evaluation; environments hear of it.
        gate: Ref of the `Gate` at which the rollouts' cohorts are open; None where they are not in lockstep.
    """

    groups: tuple[tuple[Rollout, ...], ...]
    line_ups: tuple[LineUp, ...]
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
        if strangers := [rollout.id for rollout in self.rollouts if not 0 <= rollout.line_up < len(self.line_ups)]:
            raise ConfigError(
                f"rollout {strangers[0]!r} names a line-up that the plan doesn't have; it has {len(self.line_ups)}"
            )

    @property
    def rollouts(self) -> tuple[Rollout, ...]:
        """All of them, group by group."""
        return tuple(rollout for group in self.groups for rollout in group)

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Everyone who plays, line-up by line-up."""
        return tuple(seat for line_up in self.line_ups for seat in line_up.values())


def plan_groups(
    *,
    environment: str,
    run_seed: int,
    phase: str,
    step: int,
    groups: int,
    group_size: int,
    seats: LineUp | Sequence[LineUp],
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
        seats: Who plays, by the environment's seats: the same in all groups, or one line-up for each.
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
    line_ups, numbers = _numbered(seats, groups)
    draw, when = partial(derive_seed, run_seed, phase), 0 if same_every_step else step
    seeds = [draw("task", when, group) for group in range(groups)] if tasks is None else tasks
    planned = tuple(
        tuple(
            Rollout(
                id=f"{phase}-{step}-{group}-{index}",
                task=Task(environment=environment, seed=seed),
                seed=draw("episode", when, group, index),
                cohort=f"{phase}-{step}" if cohort == "step" else f"{phase}-{step}-{group}",
                line_up=number,
            )
            for index in range(group_size)
        )
        for group, (seed, number) in enumerate(zip(seeds, numbers, strict=True))
    )
    limits = limits or EpisodeLimits()
    return RolloutPlan(groups=planned, line_ups=line_ups, limits=limits, evaluating=evaluating, gate=gate)


def _numbered(seats: LineUp | Sequence[LineUp], groups: int) -> tuple[tuple[LineUp, ...], list[int]]:
    """The different line-ups, and the number of each group's."""
    each = [seats] * groups if isinstance(seats, Mapping) else list(seats)
    if len(each) != groups:
        raise ConfigError(f"{len(each)} line-ups were given for {groups} groups; one each is needed")
    different: list[LineUp] = []
    for line_up in each:
        if line_up not in different:
            different.append(line_up)
    return tuple(different), [different.index(line_up) for line_up in each]
