"""REINFORCE++: advantages normalised over the whole batch rather than over each group.

Hu et al. 2025, "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization"
(arXiv 2501.03262). The batch is all trajectories of one policy in one step, each counted once; the standard deviation
divides by their number. The paper's KL penalty is a setting of its own (`kl.where = "reward"`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tinker_actors.algorithms.estimators import centred, spread


def reinforce_pp(groups: Sequence[Sequence[float]]) -> list[list[float]]:
    """(r - mean of the batch) / std of the batch; groups may have one member.

    >>> reinforce_pp([[1.0], [0.0], [1.0], [0.0]])
    [[1.0], [-1.0], [1.0], [-1.0]]
    """
    return _regrouped(centred([reward for group in groups for reward in group]), groups)


def reinforce_pp_baseline(groups: Sequence[Sequence[float]]) -> list[list[float]]:
    """The variant with a baseline: (r - mean of its group) / std of all these differences in the batch.

    The differences of each group sum to 0, so their mean over the batch is 0 and isn't taken off again: groups of
    equal rewards stay exactly 0.

    >>> reinforce_pp_baseline([[1.0, 0.0], [6.0, 5.0]])
    [[1.0, -1.0], [1.0, -1.0]]
    """
    return _regrouped([value for group in groups for value in centred(group)], groups)


def _regrouped(values: Sequence[float], groups: Sequence[Sequence[float]]) -> list[list[float]]:
    deviation = spread(values)
    scaled = iter([value / deviation for value in values] if deviation > 0 else values)
    return [[next(scaled) for _ in group] for group in groups]
