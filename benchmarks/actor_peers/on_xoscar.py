"""xoscar: a pool of this process and one sub-process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import xoscar as xo
from xoscar.backends.allocate_strategy import ProcessIndex

from benchmarks.actor_peers import measure


class Counter(xo.Actor):
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


_state: dict[Any, Any] = {}


async def pool() -> Any:
    """The pool, started at the first call."""
    if "pool" not in _state:
        _state["pool"] = await xo.create_actor_pool("127.0.0.1", n_process=1)
    return _state["pool"]


async def spawn(process: int, **options: Any) -> Any:
    """A ref to a new `Counter` in this process (0) or in the other one (1)."""
    strategy = ProcessIndex(process)
    return await xo.create_actor(
        Counter, address=(await pool()).external_address, allocate_strategy=strategy, **options
    )


async def _counter(process: int) -> Any:
    if process not in _state:
        _state[process] = await spawn(process)
    return _state[process]


def _p50(process: int) -> Callable[[int], Awaitable[float]]:
    async def case(count: int) -> float:
        counter = await _counter(process)
        return await measure.p50(lambda: counter.add(1), count)

    return case


def _pipelined(process: int) -> Callable[[int], Awaitable[float]]:
    async def case(count: int) -> float:
        counter = await _counter(process)
        return await measure.pipelined(lambda: counter.add(1), count)

    return case


def _cpu(process: int) -> Callable[[int], Awaitable[float]]:
    async def case(count: int) -> float:
        await _counter(process)
        pids = measure.children() if process else ()
        return await measure.cpu_per_operation(lambda: _pipelined(process)(count), count, pids)

    return case


def _one_way(size: int) -> Callable[[int], Awaitable[float]]:
    async def case(count: int) -> float:
        counter = await _counter(1)
        data = np.ones(size, np.uint8)
        return await measure.one_way(lambda: counter.take(data), size, count)

    return case


async def _barrier(count: int) -> float:
    if "many" not in _state:
        _state["many"] = [await spawn(0) for _ in range(1000)]
    time = await measure.p50(lambda: asyncio.gather(*(ref.add(1) for ref in _state["many"])), count)
    return time / 1e3


def _spawning(watch: Callable[[Any, int], Awaitable[float]]) -> Callable[[int], Awaitable[float]]:
    async def case(count: int) -> float:
        await pool()
        refs: list[Any] = []

        async def one() -> None:
            refs.append(await spawn(0))

        figure = await watch(one, count)
        for ref in refs:
            await xo.destroy_actor(ref)
        return figure

    return case


async def stop() -> None:
    """End the pool."""
    if "pool" in _state:
        await _state["pool"].stop()


CASES = {
    "ask_p50_ipc": _p50(1),
    "asks_pipelined_256_ipc": _pipelined(1),
    "cpu_per_ask_ipc": _cpu(1),
    "ask_p50_local": _p50(0),
    "asks_pipelined_256_local": _pipelined(0),
    "cpu_per_ask_local": _cpu(0),
    "oneway_1mib": _one_way(measure.MIB),
    "oneway_64mib": _one_way(64 * measure.MIB),
    "barrier_1000_local": _barrier,
    "spawn_10000_local": _spawning(measure.spawn_time),
    "spawn_10000_local_memory": _spawning(measure.spawn_memory),
}
