"""Stop watches that the systems share: latency, throughput, processor time, memory."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterable

import psutil

WORKERS = 256  # asks in flight in the pipelined cases
MIB = 1 << 20


async def p50(ask: Callable[[], Awaitable[object]], count: int) -> float:
    """The median time of an ask, one after another, in us."""
    times: list[int] = []
    for _ in range(count):
        start = time.perf_counter_ns()
        await ask()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


def p50_blocking(ask: Callable[[], object], count: int) -> float:
    """`p50` of a call that blocks."""
    times: list[int] = []
    for _ in range(count):
        start = time.perf_counter_ns()
        ask()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


async def pipelined(ask: Callable[[], Awaitable[object]], count: int) -> float:
    """Asks a second with `WORKERS` tasks that each ask again as soon as they have their answer."""

    async def worker() -> None:
        for _ in range(max(1, count // WORKERS)):
            await ask()

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(worker())
    return max(1, count // WORKERS) * WORKERS / (time.perf_counter() - start)


async def cpu_per_operation(work: Callable[[], Awaitable[object]], count: int, pids: Iterable[int] = ()) -> float:
    """User and system time of this process and `pids` for each of `count` operations that `work` does, in us."""
    clocks = [_clock_of(pid) for pid in (os.getpid(), *pids)]
    start = sum(time.clock_gettime(clock) for clock in clocks)
    await work()
    return (sum(time.clock_gettime(clock) for clock in clocks) - start) / count * 1e6


def _clock_of(pid: int) -> int:
    """The kernel's processor clock of a whole process (Linux: clock_getcpuclockid)."""
    return (~pid << 3) | 2


def children() -> list[int]:
    """The process ids of everything that this process started."""
    return [child.pid for child in psutil.Process().children(recursive=True)]


async def one_way(send: Callable[[], Awaitable[object]], size: int, count: int) -> float:
    """GB/s of messages of `size` bytes, each acknowledged before the next; the median of `count`."""
    await send()
    return size / (await p50(send, count) * 1e3)


async def spawn_time(spawn: Callable[[], Awaitable[object]], count: int) -> float:
    """The time of one of `count` spawns in us."""
    gc.collect()
    start = time.perf_counter()
    for _ in range(count):
        await spawn()
    return (time.perf_counter() - start) / count * 1e6


async def spawn_memory(spawn: Callable[[], Awaitable[object]], count: int) -> float:
    """What Python holds of one of `count` idle actors in KB (of 1,000 bytes).

    The resident size would say nothing from the second round on: the allocator keeps what the first gave back.
    """
    await spawn()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(count):
            await spawn()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / count / 1e3
    finally:
        tracemalloc.stop()


def mean_blocking(work: Callable[[], object], count: int) -> float:
    """The mean time of a call that blocks, in us."""
    start = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - start) / count * 1e6


def window_blocking(send: Callable[[], object], receive: Callable[[], object], count: int) -> float:
    """Exchanges a second with `WORKERS` messages on their way at any time."""
    start = time.perf_counter()
    for _ in range(WORKERS):
        send()
    for _ in range(count - WORKERS):
        receive()
        send()
    for _ in range(WORKERS):
        receive()
    return count / (time.perf_counter() - start)
