"""What a value head says of the trajectories of groups: datums to score, and their scores by turn and action token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tinker_actors.algorithms.estimators import SeatGroup, TokenRows
from tinker_actors.data import Datum, Trajectory, rl_datums
from tinker_actors.errors import AlgorithmError


def datums_to_value(groups: Sequence[SeatGroup]) -> tuple[Datum, ...]:
    """Datums of all trajectories, in order, for a `forward` of a policy with a value head."""
    members = (trajectory for group in groups for trajectory in group.members)
    return tuple(datum for trajectory in members for datum in rl_datums(trajectory, 0.0))


def with_values(
    groups: Sequence[SeatGroup], datums: Sequence[Datum], rows: Sequence[Sequence[float]]
) -> list[SeatGroup]:
    """The groups with values.

    Args:
        groups: As given to `datums_to_value`.
        datums: What that returned.
        rows: For each datum the values at its targets (`ForwardBackwardResult.values`).

    Raises:
        AlgorithmError: The rows don't belong to the groups' datums.
    """
    if [len(row) for row in rows] != [len(datum) for datum in datums]:
        raise AlgorithmError("values and datums differ in shape; one value per target of each datum is needed")
    sampled = iter(
        [
            value
            for datum, row in zip(datums, rows, strict=True)
            for bit, value in zip(datum.mask or (), row, strict=True)
            if bit
        ]
    )
    found = [replace(group, values=tuple(_rows(member, sampled) for member in group.members)) for group in groups]
    if next(sampled, None) is not None:
        raise AlgorithmError("there are more values than action tokens; the values of these groups alone are needed")
    return found


def _rows(member: Trajectory, values: Iterator[float]) -> TokenRows:
    return tuple(tuple(next(values) for _ in turn.action) for turn in member.turns)
