"""A counter in another process: ask, tell, stream, a deadline, and a crash that it survives.

Run it with `python examples/actors/counter.py`, or with `--nodes 1` to have everything in one process.
"""

# ruff: noqa: T201 - it shows what it does

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import AsyncIterator

from tinker_actors.actors import Actor, DeadlineExceeded, Mesh, Restarted, RestartPolicy


class Counter(Actor):
    """Counts, in whichever process it was put."""

    def __init__(self, start: int = 0) -> None:
        self.n = start

    async def add(self, n: int) -> int:
        """Add `n` and return the sum."""
        self.n += n
        return self.n

    async def count_to(self, n: int) -> AsyncIterator[int]:
        """Yield 1 to `n`."""
        for i in range(1, n + 1):
            yield i

    async def add_slowly(self, n: int, seconds: float) -> int:
        """Add `n` after a while."""
        await asyncio.sleep(seconds)
        return await self.add(n)


async def main(nodes: int) -> None:
    """Use a counter in every way."""
    async with Mesh(nodes=nodes) as mesh:
        counter = await mesh.spawn(Counter, 40, name="counter", restart=RestartPolicy.on_failure())
        print("ask:", await counter.add(1))
        counter.tell.add(1)
        print("after a tell:", await counter.add(0))
        print("stream:", [i async for i in counter.stream.count_to(3)])
        try:
            await counter.options(timeout=0.05).add_slowly(100, seconds=10.0)
        except DeadlineExceeded as error:
            print("deadline:", error)
        print("unchanged:", await counter.add(0))
        if nodes > 1:
            events = mesh.watch(counter)
            os.kill(mesh.pids[1], signal.SIGKILL)
            async for event in events:
                assert isinstance(event, Restarted)
                print("its process was killed; incarnation", event.incarnation, "has", await counter.add(0))
                break


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=2)
    asyncio.run(main(parser.parse_args().nodes))
