"""Where sequences keep their keys and values: one line of token places, cut by halves (a buddy allocator).

Neighbours of one size lie at equal distances, so that one attention call can read several of them, and memory never
needs to be moved together: two free halves become whole again. (Knowlton: A fast storage allocator, 1965.)
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

SMALLEST = 32
"""Places of the smallest extent; every extent is this times a power of two."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Consecutive places.

    Attributes:
        start: The first.
        size: How many.
    """

    start: int
    size: int


def extent_size(tokens: int) -> int:
    """Places of the smallest extent that holds so many tokens."""
    size = SMALLEST
    while size < tokens:
        size *= 2
    return size


class Extents:
    """Hands out extents of a line of places, the lowest free one first.

    Args:
        places: Length of the line; what doesn't fill an extent of `largest` places is left out.
        largest: Size of the largest extent.

    Attributes:
        places: How many places there are.
        taken: How many are in extents that are out.
    """

    def __init__(self, places: int, largest: int) -> None:
        self.largest = extent_size(largest)
        self.places = places // self.largest * self.largest
        self.taken = 0
        self._free: dict[int, list[int]] = {}
        size = SMALLEST
        while size <= self.largest:
            self._free[size] = []
            size *= 2
        self._free[self.largest] = list(range(0, self.places, self.largest))
        self._is_free: dict[int, int] = dict.fromkeys(self._free[self.largest], self.largest)

    def take(self, tokens: int) -> Extent | None:
        """An extent for so many tokens; None if no free one is large enough."""
        wanted = size = extent_size(tokens)
        while size <= self.largest:
            if (start := self._pop(size)) is not None:
                break
            size *= 2
        else:
            return None
        while size > wanted:
            size //= 2
            self._push(start + size, size)
        self.taken += wanted
        return Extent(start, wanted)

    def give(self, extent: Extent) -> None:
        """Take an extent back."""
        start, size = extent.start, extent.size
        self.taken -= size
        while size < self.largest:
            buddy = start ^ size
            if self._is_free.get(buddy) != size:
                break
            del self._is_free[buddy]  # its entry in the heap is stale from now on
            start, size = min(start, buddy), size * 2
        self._push(start, size)

    def _push(self, start: int, size: int) -> None:
        self._is_free[start] = size
        heapq.heappush(self._free[size], start)

    def _pop(self, size: int) -> int | None:
        free = self._free[size]
        while free:
            start = heapq.heappop(free)
            if self._is_free.get(start) == size:
                del self._is_free[start]
                return start
        return None
