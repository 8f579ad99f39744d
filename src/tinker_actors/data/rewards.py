"""When rewards are equal."""

from __future__ import annotations

from collections.abc import Sequence

_ROUNDING = 1e-12  # share of the largest; sums of a thousand terms differ by less


def all_equal(rewards: Sequence[float]) -> bool:
    """Whether rewards are the same, but for the rounding of the sums that they are; none or one of them are.

    What earned 0.1 three times has earned as much as what earned 0.3 at once, although the numbers differ in their last
    bit. An estimator that divides by their spread would make the largest advantages of it.

    >>> 0.1 + 0.1 + 0.1 == 0.3, all_equal([0.1 + 0.1 + 0.1, 0.3])
    (False, True)
    >>> all_equal([0.3, 0.301])
    False
    """
    low, high = min(rewards, default=0.0), max(rewards, default=0.0)
    return high - low <= _ROUNDING * max(abs(low), abs(high))
