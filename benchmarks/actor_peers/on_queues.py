"""The floor within one process: a task that serves an `asyncio.Queue` and answers through a future."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.actor_peers import measure

_tasks: list[asyncio.Task[None]] = []


class Server:
    """One queue and the task that serves it."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[asyncio.Future[int], int]] = asyncio.Queue()
        self.n = 0
        self.task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            future, n = await self.queue.get()
            self.n += n
            future.set_result(self.n)

    def ask(self, n: int) -> asyncio.Future[int]:
        """Put a request in the queue."""
        future = asyncio.get_running_loop().create_future()
        self.queue.put_nowait((future, n))
        return future


_server: list[Server] = []


def _ask() -> Any:
    if not _server:
        _server.append(Server())
    return _server[0].ask(1)


async def _cpu(count: int) -> float:
    return await measure.cpu_per_operation(lambda: measure.pipelined(_ask, count), count)


async def _barrier(count: int) -> float:
    """A thousand servers asked and awaited with `gather`, in ms."""
    servers = [Server() for _ in range(1000)]
    time = await measure.p50(lambda: asyncio.gather(*(server.ask(1) for server in servers)), count)
    for server in servers:
        server.task.cancel()
    return time / 1e3


async def _spawn(count: int) -> float:
    servers: list[Server] = []

    async def spawn() -> None:
        servers.append(Server())

    time = await measure.spawn_time(spawn, count)
    for server in servers:
        server.task.cancel()
    return time


async def stop() -> None:
    """End the server."""
    for server in _server:
        server.task.cancel()


CASES = {
    "ask_p50_local": lambda count: measure.p50(_ask, count),
    "asks_pipelined_256_local": lambda count: measure.pipelined(_ask, count),
    "cpu_per_ask_local": _cpu,
    "barrier_1000_local": _barrier,
    "spawn_10000_local": _spawn,
}
