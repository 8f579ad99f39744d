"""From groups of episodes to each policy's batch of datums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinker_actors.algorithms.aggregation import Aggregation, factors
from tinker_actors.algorithms.estimators import Estimator
from tinker_actors.data import Datum, Group, Trajectory, rl_datums


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBatch:
    """What one policy trains on in one step.

    Attributes:
        datums: Trajectories with a nonzero advantage, the only ones with a gradient, unless all were asked for.
        trajectories: How many trainable trajectories the batch was made of.
        action_tokens: How many tokens were sampled in them.
        groups: How many (task, seat) groups there were.
        flat_groups: How many of those had equal rewards throughout.
    """

    datums: tuple[Datum, ...]
    trajectories: int
    action_tokens: int
    groups: int
    flat_groups: int


def policy_batches(
    groups: Sequence[Group],
    estimate: Estimator,
    aggregation: Aggregation,
    *,
    constant: int | None = None,
    keep_flat: bool = False,
) -> dict[str, PolicyBatch]:
    """Each policy's batch: advantages over every (task, seat), then the aggregation over the policy's trajectories.

    With `keep_flat` trajectories whose advantage is 0 have datums too: KL penalties and entropy bonuses move them.
    """
    batches: dict[str, PolicyBatch] = {}
    by_policy: dict[str, list[list[Trajectory]]] = {}
    for policy, members in _seat_groups(groups):
        by_policy.setdefault(policy, []).append(members)
    for policy, seat_groups in by_policy.items():
        flat = [trajectory for members in seat_groups for trajectory in members]
        advantages = [estimate([trajectory.reward for trajectory in members]) for members in seat_groups]
        scales = factors(aggregation, [trajectory.action_tokens for trajectory in flat], constant=constant)
        signal = [value for values in advantages for value in values]
        datums = [
            datum
            for trajectory, advantage, scale in zip(flat, signal, scales, strict=True)
            if keep_flat or advantage != 0.0
            for datum in rl_datums(trajectory, advantage, scale=scale)
        ]
        batches[policy] = PolicyBatch(
            datums=tuple(datums),
            trajectories=len(flat),
            action_tokens=sum(trajectory.action_tokens for trajectory in flat),
            groups=len(seat_groups),
            flat_groups=sum(not any(values) for values in advantages),
        )
    return batches


def _seat_groups(groups: Sequence[Group]) -> Iterator[tuple[str, list[Trajectory]]]:
    for group in groups:
        for seat in group.trainable_seats:
            members = list(group.trajectories(seat))
            if policies := {trajectory.policy for trajectory in members if trajectory.policy is not None}:
                yield policies.pop(), members
