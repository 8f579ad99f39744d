"""A pool of workers in other processes, fed from a queue, that meet at a barrier between two rounds.

Run it with `python examples/actors/worker_pool.py`.
"""

# ruff: noqa: T201 - it shows what it does

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

from tinker_actors.actors import Actor, Barrier, Mesh

WORKERS = 4


class Jobs(Actor):
    """Gives out numbers, each once."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.results: dict[int, int] = {}

    async def put(self, numbers: Iterable[int]) -> None:
        """More to do."""
        self.waiting.extend(numbers)

    async def take(self) -> int | None:
        """The next number, or None if there is none."""
        return self.waiting.pop(0) if self.waiting else None

    async def done(self, number: int, result: int) -> None:
        """A worker's result."""
        self.results[number] = result

    async def total(self) -> int:
        """The sum of all results."""
        return sum(self.results.values())


class Worker(Actor):
    """Squares numbers until there are no more."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs

    async def pid(self) -> int:
        """The process that it runs in."""
        return os.getpid()

    async def work(self, barrier: Barrier) -> int:
        """Do one round; returns its number once all workers are through with it."""
        while (number := await self.jobs.take()) is not None:
            self.jobs.tell.done(number, number * number)
        return await barrier.arrive(self)


async def main() -> None:
    """Two rounds of work."""
    async with Mesh(nodes=3) as mesh:
        jobs = await mesh.spawn(Jobs, name="jobs", node=0)
        workers = mesh.group([await mesh.spawn(Worker, jobs) for _ in range(WORKERS)])
        print("processes:", len(set(await workers.ask.pid())))
        barrier = await mesh.barrier(workers, timeout=10.0)
        for numbers in (range(1, 101), range(101, 201)):
            await jobs.put(list(numbers))
            rounds = await workers.options(timeout=10.0).ask.work(barrier)
            print("round", rounds[0], "is over; the sum is", await jobs.total())


if __name__ == "__main__":
    asyncio.run(main())
