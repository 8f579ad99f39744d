"""What waits for a place: higher priorities first, and among equal ones each job its share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Lane(Generic[T]):
    served: float
    items: deque[T] = field(default_factory=deque)


class FairQueue(Generic[T]):
    """Start-time fair queueing over lanes (Goyal, Vin, Cheng, 1996): the lane that was served least goes next.

    A lane that was idle begins where the busy ones are: what it didn't use it can't claim later.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, dict[Hashable, _Lane[T]]] = {}
        self._length = 0
        self._now = 0.0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        for priority in sorted(self._lanes, reverse=True):
            for lane in self._lanes[priority].values():
                yield from lane.items

    def push(self, item: T, *, priority: int, lane: Hashable, first: bool = False) -> None:
        """Add an item at the end of its lane, or as its first."""
        lanes = self._lanes.setdefault(priority, {})
        if lane not in lanes:
            lanes[lane] = _Lane(self._now)
        elif not lanes[lane].items:
            lanes[lane].served = max(lanes[lane].served, self._now)
        if first:
            lanes[lane].items.appendleft(item)
        else:
            lanes[lane].items.append(item)
        self._length += 1

    def peek(self) -> T | None:
        """The item that goes next."""
        found = self._next()
        return None if found is None else found.items[0]

    def pop(self, cost: float) -> T:
        """Take the item that goes next; its lane is charged the cost."""
        lane = self._next()
        assert lane is not None
        self._now = max(self._now, lane.served)
        lane.served += cost
        self._length -= 1
        return lane.items.popleft()

    def drop(self, unwanted: Callable[[T], bool]) -> None:
        """Take items out."""
        for priority in list(self._lanes):
            for lane in self._lanes[priority].values():
                kept = deque(item for item in lane.items if not unwanted(item))
                self._length -= len(lane.items) - len(kept)
                lane.items = kept
            if not any(lane.items for lane in self._lanes[priority].values()):
                del self._lanes[priority]

    def _next(self) -> _Lane[T] | None:
        for priority in sorted(self._lanes, reverse=True):
            busy = [lane for lane in self._lanes[priority].values() if lane.items]
            if busy:
                return min(busy, key=lambda lane: lane.served)
        return None
