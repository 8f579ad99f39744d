"""A curve in a terminal, drawn with block characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_BLOCKS = " ▁▂▃▄▅▆▇█"


def draw_curve(values: Sequence[float], *, width: int, height: int) -> list[str]:
    """Draw values as columns, left to right, with the range on the left.

    More values than columns are averaged in equal bins; fewer are stretched.

    Args:
        values: Finite numbers, the oldest first.
        width: Columns of the whole drawing, labels included.
        height: Rows; at least 2.

    Returns:
        The rows from top to bottom, empty if there are no values.
    """
    if not values:
        return []
    low, high = min(values), max(values)
    top, bottom = f"{high:.2f}", f"{low:.2f}"
    margin = max(len(top), len(bottom))
    labels = [f"{top:>{margin}} ┤", *[" " * margin + " │"] * (height - 2), f"{bottom:>{margin}} ┤"]
    columns = _resample(values, max(width - margin - 2, 1))
    span = high - low
    # the lowest value still shows as one eighth of a row
    levels = [1 + round((height * 8 - 1) * ((value - low) / span if span else 0.5)) for value in columns]
    return [
        label + "".join(_BLOCKS[min(max(level - 8 * (height - 1 - row), 0), 8)] for level in levels)
        for row, label in enumerate(labels)
    ]


def _resample(values: Sequence[float], columns: int) -> list[float]:
    count = len(values)
    edges = [column * count / columns for column in range(columns + 1)]
    bins = [values[int(left) : max(math.ceil(right), int(left) + 1)] for left, right in pairwise(edges)]
    return [math.fsum(part) / len(part) for part in bins]
