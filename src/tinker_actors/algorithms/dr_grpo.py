"""Dr. GRPO: GRPO without its length and difficulty biases (Liu et al. 2025, Understanding R1-Zero-Like Training).

The advantage is r - mean, and token losses are divided by one constant rather than by each response's length: pair it
with the aggregation `constant`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinker_actors.algorithms.estimators import centred


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """Reward minus the group's mean.

    >>> dr_grpo([1.0, 0.0, 1.0, 0.0])
    [0.5, -0.5, 0.5, -0.5]
    """
    return centred(rewards)
