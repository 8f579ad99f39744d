"""The actors that our side of the comparison spawns."""

from __future__ import annotations

from typing import Any

from tinker_actors.actors import Actor


class Counter(Actor):
    """The subject of the small asks."""

    def __init__(self) -> None:
        self.n = 0

    async def add(self, n: int) -> int:
        """A few bytes each way."""
        self.n += n
        return self.n

    async def take(self, data: Any) -> int:
        """An array in, a number out."""
        return data.nbytes

    async def hang(self) -> None:
        """Never answers."""
        import asyncio

        await asyncio.Event().wait()
