"""How token losses, which the trainer sums, become one number: a factor on each trajectory's terms, penalties too.

| name | factor on every token of trajectory i |
|---|---|
| token_sum | 1 |
| token_mean | 1 / tokens of the whole batch |
| sequence_mean | 1 / (trajectories x tokens of i) |
| constant | 1 / (trajectories x constant) |

The batch is all trainable trajectories of one policy in one step. The factors are set before it is split, as the scale
of the datums, so that the result doesn't depend on micro-batches or on the number of forward_backward calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from tinker_actors.data import Datum
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


def aggregate(datums: Sequence[Datum], aggregation: Aggregation, *, constant: int | None = None) -> tuple[Datum, ...]:
    """RL datums whose summed loss is the aggregated one, each datum a sequence of its own.

    Args:
        datums: The whole batch; their scales so far are multiplied.
        aggregation: Which row of the table above.
        constant: Tokens, for `constant`.
    """
    scales = factors(aggregation, [datum.sampled_tokens for datum in datums], constant=constant)
    return tuple(replace(datum, scale=datum.scale * scale) for datum, scale in zip(datums, scales, strict=True))
