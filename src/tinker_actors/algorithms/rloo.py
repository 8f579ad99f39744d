"""RLOO: REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024, Back to Basics, eq. 8)."""

from __future__ import annotations

from collections.abc import Sequence

from tinker_actors.algorithms.estimators import centred
from tinker_actors.errors import AlgorithmError


def rloo(rewards: Sequence[float]) -> list[float]:
    """Reward minus the mean of the others: n / (n - 1) times (r - mean).

    >>> rloo([1.0, 0.0, 1.0])
    [0.5, -1.0, 0.5]

    Raises:
        AlgorithmError: The group has one member: there are no others.
    """
    if len(rewards) == 1:
        raise AlgorithmError("rloo got a group of 1; leaving one out needs a group_size of at least 2")
    return [value * len(rewards) / (len(rewards) - 1) for value in centred(rewards)]
