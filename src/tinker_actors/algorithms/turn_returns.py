"""Returns per turn: an action is worth the rewards that follow it, not those before.

Sutton and Barto 2018, "Reinforcement Learning: An Introduction", eq. 3.8 (discounted return) and section 13.4
(REINFORCE with a baseline): the advantage of turn t is its return minus the mean return of turn t over
the group, or over the batch.

Time is counted in turns or in action tokens. Observation tokens are no time: they neither decay a reward nor lose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from tinker_actors.algorithms.estimators import Estimator, SeatGroup, Signal, TokenRows, centred
from tinker_actors.data import Trajectory

DiscountPer: TypeAlias = Literal["turn", "token"]
"""What a reward is discounted by: turns, or action tokens, between an action and it."""

BaselineOver: TypeAlias = Literal["group", "batch"]
"""Whose returns at the same turn are averaged: those of the group, or of all groups of the policy."""


def turn_ends(rewards: Sequence[float], lengths: Sequence[int], discount: float, per: DiscountPer) -> list[float]:
    """The return as each turn's action ends: its reward and the discounted ones of later turns.

    >>> turn_ends([0.0, 1.0], [2, 2], 0.5, "turn")
    [0.5, 1.0]
    >>> turn_ends([0.0, 1.0], [2, 2], 0.5, "token")
    [0.25, 1.0]

    Args:
        rewards: Per turn.
        lengths: Action tokens per turn.
        discount: From 0 to 1.
        per: What a reward is discounted by.
    """
    found: list[float] = []
    later = 0.0
    for reward, length in zip(reversed(rewards), reversed(lengths), strict=True):
        found.append(reward + later)
        later = found[-1] * discount ** (1 if per == "turn" else length)
    return found[::-1]


def within_turns(ends: Sequence[float], lengths: Sequence[int], discount: float, per: DiscountPer) -> TokenRows:
    """A number per action token from one per turn, as it is at the turn's last token.

    >>> within_turns([0.25, 1.0], [2, 2], 0.5, "token")
    ((0.125, 0.25), (0.5, 1.0))
    """
    decay = 1.0 if per == "turn" else discount
    return tuple(
        tuple(end * decay ** (length - 1 - place) for place in range(length))
        for end, length in zip(ends, lengths, strict=True)
    )


def turn_returns(*, discount: float = 1.0, per: DiscountPer = "turn", baseline: BaselineOver = "group") -> Estimator:
    """The estimator. Turns that nobody else reached have advantage 0.

    Args:
        discount: From 0 to 1.
        per: What a reward is discounted by. With `token` the turn's advantage is discounted within the turn too.
        baseline: Over which trajectories the mean return of a turn is taken.
    """

    def signals(groups: Sequence[SeatGroup]) -> list[list[Signal]]:
        pools = [[group] for group in groups] if baseline == "group" else [list(groups)]
        found = [_pool([member for group in pool for member in group.members]) for pool in pools]
        rows = iter([signal for pool in found for signal in pool])
        return [[next(rows) for _ in group.members] for group in groups]

    def _pool(members: Sequence[Trajectory]) -> list[Signal]:
        lengths = [[len(turn.action) for turn in member.turns] for member in members]
        ends = [
            turn_ends([turn.reward for turn in member.turns], own, discount, per)
            for member, own in zip(members, lengths, strict=True)
        ]
        for turn in range(max(map(len, ends), default=0)):
            there = [row for row in ends if len(row) > turn]
            for row, value in zip(there, centred([row[turn] for row in there]), strict=True):
                row[turn] = value
        return [Signal(advantage=within_turns(row, own, discount, per)) for row, own in zip(ends, lengths, strict=True)]

    return signals
