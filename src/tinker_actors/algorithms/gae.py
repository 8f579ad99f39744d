"""Generalised advantage estimation with a value head (Schulman et al. 2016, arXiv 1506.02438, eq. 16).

Over the action tokens of a trajectory, the one after another, whatever observation stands between them:

    delta_t = r_t + discount * V_(t+1) - V_t
    A_t = delta_t + discount * trace_decay * A_(t+1)

with V after the last action token 0. V_t is the value of the tokens before action token t. A turn's reward belongs to
its last action token; the reward of a turn without action to the last one before it. With the discount per turn it
applies where the next action token belongs to a later turn, and is 1 within a turn; the trace decays per token in both
cases. The value head is trained towards A + V.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinker_actors.algorithms.estimators import Estimator, SeatGroup, Signal, TokenRows, centred, spread
from tinker_actors.algorithms.turn_returns import DiscountPer
from tinker_actors.data import Trajectory
from tinker_actors.errors import AlgorithmError


def gae(
    rewards: Sequence[float], values: TokenRows, *, discount: float, trace_decay: float, per: DiscountPer = "token"
) -> TokenRows:
    """The advantage of every action token.

    >>> gae([0.0, 1.0], ((0.0, 0.0), (0.0, 0.0)), discount=1.0, trace_decay=1.0)
    ((1.0, 1.0), (1.0, 1.0))
    >>> gae([0.0, 1.0], ((0.5, 0.5), (0.25, 0.75)), discount=1.0, trace_decay=0.0)
    ((0.0, -0.25), (0.5, 0.25))

    Args:
        rewards: Per turn.
        values: The value before each action token, a row per turn.
        discount: From 0 to 1.
        trace_decay: Lambda, from 0 (one step) to 1 (the whole return).
        per: What a reward is discounted by.
    """
    found: list[tuple[float, ...]] = []
    later = reward_below = value_after = 0.0
    between = 1.0  # nothing follows the last action token, so nothing is discounted there
    for reward, row in zip(reversed(rewards), reversed(values), strict=True):
        reward_below += reward
        own: list[float] = []
        for value in reversed(row):
            delta = reward_below + between * value_after - value
            later = delta + between * trace_decay * later
            own.append(later)
            reward_below, value_after = 0.0, value
            between = discount if per == "token" else 1.0
        if row:
            between = discount
        found.append(tuple(reversed(own)))
    return tuple(reversed(found))


def gae_estimator(
    *, discount: float = 1.0, trace_decay: float = 0.95, per: DiscountPer = "token", normalise: bool = True
) -> Estimator:
    """The estimator; its groups need values.

    Args:
        discount: From 0 to 1.
        trace_decay: Lambda, from 0 to 1.
        per: What a reward is discounted by.
        normalise: Give advantages mean 0 and standard deviation 1 over all action tokens of the batch, exactly 0 where
            all are equal (Andrychowicz et al. 2021, "What Matters In On-Policy Reinforcement Learning?").

    Raises:
        AlgorithmError: A group has no values.
    """

    def raw(member: Trajectory, values: TokenRows) -> TokenRows:
        rewards = [turn.reward for turn in member.turns]
        return gae(rewards, values, discount=discount, trace_decay=trace_decay, per=per)

    def signals(groups: Sequence[SeatGroup]) -> list[list[Signal]]:
        values = [_values(group) for group in groups]
        advantages = [
            [raw(member, rows) for member, rows in zip(group.members, own, strict=True)]
            for group, own in zip(groups, values, strict=True)
        ]
        flat = [value for own in advantages for rows in own for row in rows for value in row]
        scaled = iter(_normalised(flat) if normalise else flat)
        return [
            [
                Signal(
                    advantage=tuple(tuple(next(scaled) for _ in row) for row in rows),
                    returns=_sums(rows, before),
                    values=before,
                )
                for rows, before in zip(own, own_values, strict=True)
            ]
            for own, own_values in zip(advantages, values, strict=True)
        ]

    return signals


def _values(group: SeatGroup) -> tuple[TokenRows, ...]:
    if group.values is None:
        raise AlgorithmError(f"seat {group.seat!r} has no values; gae needs a policy with a value head, and its values")
    return group.values


def _normalised(values: Sequence[float]) -> list[float]:
    found = centred(values)
    deviation = spread(found)
    return [value / deviation for value in found] if deviation > 0 else found


def _sums(left: TokenRows, right: TokenRows) -> TokenRows:
    return tuple(tuple(map(float.__add__, one, other)) for one, other in zip(left, right, strict=True))
