"""GRPO: group-relative advantages (Shao et al. 2024, DeepSeekMath, section 4.1.2)."""

from __future__ import annotations

from collections.abc import Sequence

from tinker_actors.algorithms.estimators import centred, spread


def grpo(rewards: Sequence[float]) -> list[float]:
    """(r - mean) / std over the group, std over the group itself (dividing by n).

    >>> grpo([1.0, 0.0, 1.0, 0.0])
    [1.0, -1.0, 1.0, -1.0]
    """
    values = centred(rewards)
    deviation = spread(values)
    return [value / deviation for value in values] if deviation > 0 else values


def grpo_no_std(rewards: Sequence[float]) -> list[float]:
    """GRPO without dividing by the standard deviation: r - mean.

    >>> grpo_no_std([1.0, 0.0, 1.0, 0.0])
    [0.5, -0.5, 0.5, -0.5]
    """
    return centred(rewards)
