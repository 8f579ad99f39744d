"""The actors of the soak, importable from its child processes."""

from __future__ import annotations

import asyncio
from typing import Any

from tinker_actors.actors import Actor
from tinker_actors.errors import ActorError


class Worker(Actor):
    """Counts what it serves. One client owns it and numbers its asks, so that one served twice is seen."""

    def __init__(self) -> None:
        self.last = 0
        self.counts = {"begun": 0, "ended": 0, "cancelled": 0, "failed": 0, "twice": 0}

    async def work(self, number: int, seconds: float, onward: Any) -> int:
        """Serve ask `number`: wait for `seconds`, ask another worker for its counts if one is given."""
        counts = self.counts
        counts["begun"] += 1
        if number <= self.last:
            counts["twice"] += 1
        self.last = number
        try:
            if seconds:
                await asyncio.sleep(seconds)
            if onward is not None:
                await onward.read()
        except asyncio.CancelledError:
            counts["cancelled"] += 1
            raise
        except ActorError:  # the other worker's process was killed
            counts["failed"] += 1
            raise
        counts["ended"] += 1
        return number

    async def swallow(self, data: bytes) -> int:
        """Take a large message."""
        return len(data)

    async def read(self) -> dict[str, int]:
        """What it has counted in this incarnation."""
        return self.counts
