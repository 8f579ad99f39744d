"""Actors that spawn others at awkward moments, or are crowded, importable from child processes."""

from __future__ import annotations

import asyncio

from zoo import Counter, Log

from tinker_actors.actors import Actor, SpawnError, concurrent

outliving: set[asyncio.Task[None]] = set()  # tasks that no actor holds


class Spawner(Actor):
    async def spawn_and_cancel(self, node: int, turns: int) -> None:
        task = asyncio.create_task(self.mesh.spawn(Counter, node=node))
        for _ in range(turns):
            await asyncio.sleep(0.0001)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await self.mesh.stop(task.result())

    async def spawn_once_ended(self, log: Log) -> None:
        async def spawn() -> None:
            async for _ in self.mesh.watch(self.ref):
                pass
            try:
                await self.mesh.spawn(Counter)
            except SpawnError as error:
                await log.note("refused" if "its parent has ended" in str(error) else str(error))
            else:
                await log.note("spawned")

        outliving.add(asyncio.create_task(spawn()))


class Room(Actor):
    """Counts who is in it at once."""

    def __init__(self) -> None:
        self.present = self.most = 0

    @concurrent
    async def visit(self) -> int:
        self.present += 1
        self.most = max(self.most, self.present)
        for _ in range(10):
            await asyncio.sleep(0)
        self.present -= 1
        return self.most
