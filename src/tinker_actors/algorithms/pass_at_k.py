"""Pass@k as the objective: the best of k samples counts (Walder and Karkhanis 2025, "Pass@K Policy Optimization").

The gradient of the expected maximum reward of k samples, from n >= k of them: a sample is worth what it adds to the
maximum of a set of k, averaged over all sets that contain it. This is the paper's estimator with the maximum of the
other k - 1 as baseline (arXiv 2505.15201, eq. 33), without bias and with the least variance of those given there. It is
multiplied by n, since losses here are means over samples where the paper's are sums.

No advantage is negative: a sample that adds nothing is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinker_actors.algorithms.estimators import checked
from tinker_actors.errors import AlgorithmError


def pass_at_k(rewards: Sequence[float], *, k: int) -> list[float]:
    """The k-fold mean, over sets of k that contain the sample, of max(set) - max(set without the sample).

    >>> pass_at_k([1.0, 0.0, 0.0, 0.0], k=2)
    [2.0, 0.0, 0.0, 0.0]
    >>> [round(value, 6) for value in pass_at_k([1.0, 1.0, 0.0], k=2)]
    [1.0, 1.0, 0.0]

    Args:
        rewards: Of one group.
        k: Size of the sets, at least 2.

    Raises:
        AlgorithmError: k is below 2, or the group has fewer than k members.
    """
    values = checked(rewards)
    if k < 2:
        raise AlgorithmError(f"pass_k is {k}; an integer of at least 2 is needed")
    if len(values) < k:
        raise AlgorithmError(f"pass_at_k got a group of {len(values)}; at least pass_k = {k} are needed")
    sets = math.comb(len(values) - 1, k - 1)
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    for place, index in enumerate(order):
        # the others of a set that this sample leads lie below it; comb(q, k - 2) sets have their largest at place q
        gains = [math.comb(q, k - 2) / sets * (values[index] - values[order[q]]) for q in range(k - 2, place)]
        found[index] = k * math.fsum(gains)
    return found
