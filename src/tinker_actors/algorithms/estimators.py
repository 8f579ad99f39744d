"""What advantage estimators take and give, and the checks that all of them share.

An estimator sees all groups that one policy trains on in a step, each of one task and seat, and says for every
trajectory how much its actions are to be favoured. Most look at the rewards of one group at a time: those are functions
of a list of rewards, `GroupEstimator`, and `by_group` makes estimators of them.

Where the rewards that a baseline is taken over are all equal, as of `all_equal`, there is no signal: advantages are
exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tinker_actors.data import Trajectory, all_equal
from tinker_actors.errors import AlgorithmError

TokenRows: TypeAlias = tuple[tuple[float, ...], ...]
"""A number for every action token of a trajectory: a row per turn, empty for a turn without action."""

GroupEstimator: TypeAlias = Callable[[Sequence[float]], list[float]]
"""Takes the rewards of one group and gives one advantage per trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatGroup:
    """What one seat did in the valid episodes of one task.

    Attributes:
        environment: The task's environment.
        seat: The seat.
        members: Its trajectories; those of failed episodes are left out, and those in which nothing was sampled for it.
        left_out: How many episodes of the task those are.
        values: For each member, where the policy has a value head, its value at every action token.
    """

    environment: str
    seat: str
    members: tuple[Trajectory, ...]
    left_out: int = 0
    values: tuple[TokenRows, ...] | None = None

    @property
    def rewards(self) -> list[float]:
        """The reward of each member."""
        return [member.reward for member in self.members]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What a trajectory is trained with.

    Attributes:
        advantage: One for all action tokens, or one per turn, or a row per turn with one per action token.
        returns: What the value head is trained towards; None without one.
        values: What the value head said; None without one.
    """

    advantage: float | tuple[float, ...] | TokenRows
    returns: TokenRows | None = None
    values: TokenRows | None = None

    @property
    def is_flat(self) -> bool:
        """Whether no action is favoured or disfavoured."""
        if isinstance(self.advantage, int | float):
            return self.advantage == 0.0
        return not any(any(entry) if isinstance(entry, tuple) else entry for entry in self.advantage)


Estimator: TypeAlias = Callable[[Sequence[SeatGroup]], list[list[Signal]]]
"""Takes all groups of one policy's step and gives a signal per trajectory, group by group."""


def by_group(estimate: GroupEstimator, *, least: int = 1) -> Estimator:
    """The estimator that looks at the rewards of one group at a time.

    Args:
        estimate: For one group.
        least: How many trajectories it needs. A group that has fewer because episodes of it are left out gets 0.
    """

    def advantages(group: SeatGroup) -> list[float]:
        short = len(group.members) < least <= len(group.members) + group.left_out
        return [0.0] * len(group.members) if short else estimate(group.rewards)

    return lambda groups: [[Signal(advantage=value) for value in advantages(group)] for group in groups]


def over_batch(estimate: Callable[[list[list[float]]], list[list[float]]]) -> Estimator:
    """The estimator that looks at the rewards of all groups together, a list per group."""

    def signals(groups: Sequence[SeatGroup]) -> list[list[Signal]]:
        found = estimate([checked(group.rewards) for group in groups])
        return [[Signal(advantage=value) for value in row] for row in found]

    return signals


def checked(rewards: Sequence[float]) -> list[float]:
    """The rewards as floats.

    Raises:
        AlgorithmError: A reward is not finite.
    """
    values = [float(reward) for reward in rewards]
    for position, value in enumerate(values):
        if not math.isfinite(value):
            raise AlgorithmError(f"reward {position} of a group is {value}; finite rewards are needed")
    return values


def centred(rewards: Sequence[float]) -> list[float]:
    """Rewards minus their mean; exactly 0 where all are equal, as of `all_equal`."""
    values = checked(rewards)
    if all_equal(values):
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


def spread(values: Sequence[float]) -> float:
    """The root of the mean square, which is the standard deviation of centred values, dividing by n."""
    return math.sqrt(math.fsum(value * value for value in values) / max(len(values), 1))


def others_needed(name: str, rewards: Sequence[float]) -> None:
    """Refuse to leave one out of one.

    Raises:
        AlgorithmError: The group has one member: there are no others.
    """
    if len(rewards) == 1:
        raise AlgorithmError(f"{name} got a group of 1; leaving one out needs a group_size of at least 2")
