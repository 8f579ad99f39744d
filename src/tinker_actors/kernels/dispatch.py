"""Which way a residual is computed, by how many rows its adapters have.

A way is chosen for a whole matrix, and ways round differently: where a row's result must not depend on how many other
rows there are, give the way yourself. Within one way a row's result depends on the row and its adapter alone.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from tinker_actors.kernels.plan import RowPlan
from tinker_actors.kernels.source import DECODE_ROWS
from tinker_actors.kernels.tables import MAX_RANK

DECODE_UP_TO = 256
"""Rows up to which a matrix goes the way of decode steps."""
WIDE_RANK = 128
"""Rank from which plain products may be the way."""
WIDE_ROWS = 512
"""Rows that each adapter must have for it then."""


class Path(enum.Enum):
    """The ways.

    Attributes:
        DECODE: Tiles of up to eight rows, one kernel where the GPU has clusters, else two.
        PREFILL: Tiles of up to 64 rows, on tensor cores, two kernels.
        PRODUCTS: Torch's own products, adapter by adapter.
    """

    DECODE = "decode"
    PREFILL = "prefill"
    PRODUCTS = "products"


def choose_path(plan: RowPlan, ranks: Sequence[int], *, same_dtype: bool, gradients: bool) -> Path:
    """The way that should be fastest.

    Args:
        plan: The rows.
        ranks: Of the adapters that have a part in it.
        same_dtype: The adapters have the rows' dtype. If not, torch's products would first copy the rows to theirs.
        gradients: Gradients are wanted; there are none of the decode kernels.
    """
    if max(ranks) > MAX_RANK:
        return Path.PRODUCTS
    counts = [segment.count for segment in plan.segments]
    few = sum(counts) <= DECODE_UP_TO or sum(counts) <= DECODE_ROWS * len(counts)
    if few and not gradients:
        return Path.DECODE
    long = len(counts) == 1 or (max(ranks) >= WIDE_RANK and min(counts) >= WIDE_ROWS)
    return Path.PRODUCTS if long and same_dtype and not few else Path.PREFILL
