"""The leave-one-out baseline of RLOO in units of the group's spread.

The baseline is that of Kool et al. 2019, "Buy 4 REINFORCE Samples, Get a Baseline for Free!": the mean reward of the
other samples, which doesn't depend on the sample itself. The scale is GRPO's (Shao et al. 2024, section 4.1.2), the
standard deviation of the whole group: that of the others alone has no bound from below where they are nearly equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinker_actors.algorithms.estimators import centred, others_needed, spread


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """(r - mean of the others) / std over the group, dividing by n.

    >>> leave_one_out([1.0, 0.0, 1.0, 0.0, 0.5])
    [1.3975424859373686, -1.3975424859373686, 1.3975424859373686, -1.3975424859373686, 0.0]

    Raises:
        AlgorithmError: The group has one member: there are no others.
    """
    others_needed("leave_one_out", rewards)
    values = centred(rewards)
    deviation = spread(values)
    scale = len(values) / (len(values) - 1) / deviation if deviation > 0 else 0.0
    return [value * scale for value in values]
