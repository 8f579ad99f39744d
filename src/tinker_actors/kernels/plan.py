"""Which rows belong to which adapter: worked out once per step on the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tinker_actors.errors import TinkerActorsError

NO_ADAPTER = -1


class KernelError(TinkerActorsError, ValueError):
    """A plan and the tensors given with it don't fit together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The rows of one adapter.

    Attributes:
        slot: The adapter's slot.
        first: Where its rows begin in the plan's `order`.
        count: How many rows it has, at least one.
        start: The first row where the rows lie one after the other in the matrix (no gather needed), else None.
    """

    slot: int
    first: int
    count: int
    start: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """Rows grouped by adapter slot. Rows without an adapter are in no segment, so nothing can touch them.

        >>> plan = RowPlan.build([1, NO_ADAPTER, 0, 1])
        >>> plan.order.tolist(), plan.inverse.tolist()
        ([2, 0, 3], [1, -1, 0, 2])
        >>> [(s.slot, s.first, s.count, s.start) for s in plan.segments]
        [(0, 0, 1, 2), (1, 1, 2, None)]

    Attributes:
        rows: Rows of the matrix, those without an adapter included.
        order: [n] int64, the rows that have an adapter, sorted by slot, in their own order within a slot.
        inverse: [rows] int64, each row's place in `order`, or -1.
        segments: One per slot that occurs, by ascending slot.
        on_devices: What was made of the plan for a device, by device; kept so that every layer finds it again.
    """

    rows: int
    order: NDArray[np.int64] = field(repr=False)
    inverse: NDArray[np.int64] = field(repr=False)
    segments: tuple[Segment, ...]
    on_devices: dict[object, object] = field(default_factory=dict[object, object], repr=False, compare=False)

    @classmethod
    def build(cls, slots: Sequence[int], *, tokens_per_row: int | Sequence[int] = 1) -> RowPlan:
        """Plan for a matrix whose rows have these slots.

        Args:
            slots: A slot per row; `NO_ADAPTER` (or any negative number) for a row without one.
            tokens_per_row: For a batch of sequences: how many matrix rows each entry of `slots` stands for, one
                number or one per entry (sequences of unequal length, packed).

        Raises:
            KernelError: `tokens_per_row` has another length than `slots`, or is negative.
        """
        try:
            per_row = np.repeat(np.asarray(slots, dtype=np.int64), tokens_per_row)
        except ValueError as error:
            raise KernelError(f"{len(slots)} slots and tokens per row {tokens_per_row!r}: {error}") from error
        order = np.argsort(per_row, kind="stable")
        order = order[int((per_row < 0).sum()) :]
        inverse = np.full(per_row.shape[0], -1, dtype=np.int64)
        inverse[order] = np.arange(order.shape[0])
        found, firsts, counts = np.unique(per_row[order], return_index=True, return_counts=True)
        segments = tuple(
            Segment(slot=slot, first=first, count=count, start=_consecutive_from(order[first : first + count]))
            for slot, first, count in zip(found.tolist(), firsts.tolist(), counts.tolist(), strict=True)
        )
        return cls(rows=per_row.shape[0], order=order, inverse=inverse, segments=segments)

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots that occur, ascending."""
        return tuple(segment.slot for segment in self.segments)

    def tiles(self, size: int) -> Iterator[tuple[int, int, int]]:
        """Segments cut into pieces of at most `size` rows: (slot, first, count), what a kernel's blocks work on."""
        for segment in self.segments:
            for first in range(segment.first, segment.first + segment.count, size):
                yield segment.slot, first, min(size, segment.first + segment.count - first)


def _consecutive_from(rows: NDArray[np.int64]) -> int | None:
    # rows ascend within a segment, so the ends alone tell
    first, last = int(rows[0]), int(rows[-1])
    return first if last - first + 1 == rows.shape[0] else None
