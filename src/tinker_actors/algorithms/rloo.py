"""RLOO: REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024, Back to Basics, eq. 8)."""

from __future__ import annotations

from collections.abc import Sequence

from tinker_actors.algorithms.estimators import centred, others_needed


def rloo(rewards: Sequence[float]) -> list[float]:
    """Reward minus the mean of the others: n / (n - 1) times (r - mean).

    >>> rloo([1.0, 0.0, 1.0])
    [0.5, -1.0, 0.5]

    Raises:
        AlgorithmError: The group has one member: there are no others.
    """
    others_needed("rloo", rewards)
    return [value * len(rewards) / (len(rewards) - 1) for value in centred(rewards)]
