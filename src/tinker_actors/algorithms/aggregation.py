"""How token losses, which the trainer sums, become one number: a factor on each trajectory's advantages.

| name | factor on every token of trajectory i |
|---|---|
| token_sum | 1 |
| token_mean | 1 / tokens of the whole batch |
| sequence_mean | 1 / (trajectories x tokens of i) |
| constant | 1 / (trajectories x constant) |

The batch is all trainable trajectories of one policy in one step, so the result doesn't depend on micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tinker_actors.errors import AlgorithmError

Aggregation = Literal["token_sum", "token_mean", "sequence_mean", "constant"]


def factors(aggregation: Aggregation, lengths: Sequence[int], *, constant: int | None = None) -> list[float]:
    """One factor per trajectory.

    Args:
        aggregation: Which row of the table above.
        lengths: Sampled tokens per trajectory.
        constant: Tokens, for `constant`.
    """
    count, total = len(lengths), sum(lengths)
    match aggregation:
        case "token_sum":
            return [1.0] * count
        case "token_mean":
            return [1.0 / max(total, 1)] * count
        case "sequence_mean":
            return [1.0 / (count * max(length, 1)) for length in lengths]
        case "constant":
            if not constant or constant < 1:
                raise AlgorithmError(f"aggregation constant is {constant}; a positive number of tokens is needed")
            return [1.0 / (count * constant)] * count
