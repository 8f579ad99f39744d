"""Maximum-likelihood RL (Tajwar et al. 2026, "Maximum Likelihood Reinforcement Learning", arXiv 2602.02710).

Expected reward E[p] weights every task alike; the likelihood of success E[log p] has the gradient of p divided by p, so
that tasks which rarely succeed weigh more. With n samples the mean reward stands for p: (r - mean) / mean. For rewards
of 0 and 1 its expectation is the gradient of p times the first n - 1 terms of 1 / p = sum over k of (1 - p)^k; it is
n - 1 rather than the paper's n because the mean is also the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinker_actors.algorithms.estimators import centred
from tinker_actors.errors import AlgorithmError


def max_rl(rewards: Sequence[float]) -> list[float]:
    """(r - mean) / mean over the group; 0 where nothing succeeded.

    >>> max_rl([1.0, 0.0, 0.0, 0.0])
    [3.0, -1.0, -1.0, -1.0]

    Raises:
        AlgorithmError: A reward is negative: the mean is no likelihood of success then.
    """
    values = centred(rewards)
    if lowest := min((reward for reward in rewards if reward < 0), default=None):
        raise AlgorithmError(f"max_rl got a reward of {lowest}; rewards of at least 0, such as 0 and 1, are needed")
    mean = math.fsum(rewards) / max(len(rewards), 1)
    return [value / mean for value in values] if mean > 0 else values
