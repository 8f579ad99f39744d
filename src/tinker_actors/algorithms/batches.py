"""From groups of episodes to each policy's batch of datums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from tinker_actors.algorithms.aggregation import Aggregation, factors
from tinker_actors.algorithms.estimators import Estimator, SeatGroup
from tinker_actors.data import Datum, Group, Trajectory, all_equal, rl_datums


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBatch:
    """What one policy trains on in one step.

    Attributes:
        datums: Trajectories with a nonzero advantage, the only ones with a gradient, unless all were asked for.
        trajectories: How many trainable trajectories the batch was made of.
        left_out: How many episodes were left out because they failed or nothing was sampled for the seat.
        action_tokens: How many tokens were sampled in them.
        groups: How many (task, seat) groups there were.
        flat_groups: How many of those had equal rewards throughout.
        members: The trajectories, each with how many of the datums are its own, in the order of the datums.
    """

    datums: tuple[Datum, ...]
    trajectories: int
    left_out: int
    action_tokens: int
    groups: int
    flat_groups: int
    members: tuple[tuple[Trajectory, int], ...] = ()


def seat_groups(groups: Sequence[Group]) -> dict[str, list[SeatGroup]]:
    """For each policy its groups, one per task and seat with trainable trajectories of it.

    Where nothing was sampled for the seat, because it never came to act or its first prompt overflowed, nothing was
    chosen: such trajectories are no measure for the others of the group.
    """
    found: dict[str, list[SeatGroup]] = {}
    for group in groups:
        for seat in group.trainable_seats:
            entries = group.trajectories(seat)
            for policy in dict.fromkeys(entry.policy for entry in entries if entry.policy is not None):
                own = [entry for entry in entries if entry.policy == policy]
                if played := tuple(entry for entry in own if entry.action_tokens):
                    left_out = len(group.failed) + len(own) - len(played)
                    found.setdefault(policy, []).append(
                        SeatGroup(environment=group.task.environment, seat=seat, members=played, left_out=left_out)
                    )
    return found


def policy_batch(
    groups: Sequence[SeatGroup],
    estimate: Estimator,
    aggregation: Aggregation,
    *,
    constant: int | None = None,
    keep_flat: bool = False,
) -> PolicyBatch:
    """One policy's batch: advantages over its groups, then the aggregation over its trajectories.

    Args:
        groups: The policy's, as of `seat_groups`.
        estimate: The advantage estimator.
        aggregation: How the losses of the trajectories become one.
        constant: Tokens, for the aggregation `constant`.
        keep_flat: Make datums of trajectories whose advantage is 0 too: KL penalties, entropy bonuses and value losses
            move them.
    """
    members = [trajectory for group in groups for trajectory in group.members]
    signals = [signal for own in estimate(groups) for signal in own]
    scales = factors(aggregation, [trajectory.action_tokens for trajectory in members], constant=constant)
    made = [
        rl_datums(trajectory, signal.advantage, scale=scale, returns=signal.returns, values=signal.values)
        if keep_flat or not signal.is_flat
        else ()
        for trajectory, signal, scale in zip(members, signals, scales, strict=True)
    ]
    return PolicyBatch(
        datums=tuple(datum for own in made for datum in own),
        trajectories=len(members),
        left_out=sum(group.left_out for group in groups),
        action_tokens=sum(trajectory.action_tokens for trajectory in members),
        groups=len(groups),
        flat_groups=sum(all_equal(group.rewards) for group in groups),
        members=tuple((trajectory, len(own)) for trajectory, own in zip(members, made, strict=True)),
    )


def trained_advantages(
    members: Sequence[tuple[Trajectory, int]], datums: Sequence[Datum]
) -> list[tuple[Trajectory, tuple[float, ...]]]:
    """What every action token of a batch's trajectories is trained with.

    Args:
        members: As of `PolicyBatch`.
        datums: Its datums as they are trained on, penalties on the reward included.

    Returns:
        For each trajectory an advantage per action token, turn after turn; zeros where it made no datum.
    """
    found: list[tuple[Trajectory, tuple[float, ...]]] = []
    rest = iter(datums)
    for trajectory, count in members:
        own = list(islice(rest, count))
        row = [
            advantage
            for datum in own
            for bit, advantage in zip(datum.mask or (), datum.advantages or (), strict=True)
            if bit
        ]
        found.append((trajectory, tuple(row) if own else (0.0,) * trajectory.action_tokens))
    return found


def policy_batches(
    groups: Sequence[Group],
    estimate: Estimator,
    aggregation: Aggregation,
    *,
    constant: int | None = None,
    keep_flat: bool = False,
) -> dict[str, PolicyBatch]:
    """Each policy's batch; see `policy_batch`."""
    return {
        policy: policy_batch(own, estimate, aggregation, constant=constant, keep_flat=keep_flat)
        for policy, own in seat_groups(groups).items()
    }
