"""A stream from another process: the reader's pace is the producer's, and leaving the loop ends it.

Run it with `python examples/actors/stream.py`.
"""

# ruff: noqa: T201 - it shows what it does

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tinker_actors.actors import Actor, Mesh, concurrent


class Primes(Actor):
    """Finds primes, for as long as somebody wants them."""

    def __init__(self) -> None:
        self.found = 0
        self.ended = asyncio.Event()

    @concurrent
    async def all(self) -> AsyncIterator[int]:
        """2, 3, 5 and so on without end."""
        primes: list[int] = []
        n = 2
        try:
            while True:
                if all(n % p for p in primes):
                    primes.append(n)
                    self.found += 1
                    yield n
                n += 1
        finally:
            self.ended.set()

    @concurrent
    async def found_so_far(self) -> int:
        """How many have been found."""
        return self.found

    @concurrent
    async def wait(self) -> int:
        """How many were found in all, once the reader has left."""
        await self.ended.wait()
        return self.found


async def main() -> None:
    """Read a few, then leave."""
    async with Mesh(nodes=2) as mesh:
        primes = await mesh.spawn(Primes)
        async with contextlib.aclosing(primes.options(buffer=4).stream.all()) as stream:
            print("the first:", [await anext(stream) for _ in range(8)])
            ahead = await primes.found_so_far() - 8
            print("found ahead of the reader:", "at most 4" if ahead <= 4 else ahead)
        print("ended with its reader:", await primes.wait() <= 12)


if __name__ == "__main__":
    asyncio.run(main())
