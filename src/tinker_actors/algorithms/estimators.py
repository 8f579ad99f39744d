"""What an advantage estimator is, and the checks that all of them share.

An estimator turns the rewards of one group, all of one task and seat, into one advantage per trajectory. Groups in
which every reward is equal carry no signal: every estimator gives exactly 0 for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tinker_actors.errors import AlgorithmError

Estimator = Callable[[Sequence[float]], list[float]]


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
    """Rewards minus their mean; exactly 0 where all are equal."""
    values = checked(rewards)
    if not values or min(values) == max(values):
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]
