"""Actors that the tests of large data spawn, importable from child processes."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import psutil

from tinker_actors.actors import Actor, concurrent
from tinker_actors.actors.arena import Block


def mapped_file(address: int) -> str:
    """What file of /proc/self/maps, with its inode, memory lies in; empty for anonymous memory."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            if low <= address < high:
                return " ".join(line.split()[4:])
    return ""


def arena_maps() -> int:
    """Mappings of arenas, its own and others', in this process."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:tinker-actors" in line for line in maps)


def named_maps() -> set[str]:
    """Files in shared memory that this process maps by a name, under which they would be left if it were killed."""
    with open("/proc/self/maps") as maps:
        return {line.split()[5] for line in maps if " /dev/shm/" in line}


class Store(Actor):
    """Takes, keeps and makes large things."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.order: list[int] = []

    async def echo(self, value: Any) -> Any:
        return value

    async def size(self, data: Any) -> int:
        return memoryview(data).nbytes

    async def where(self, data: np.ndarray) -> tuple[str, bool]:
        return mapped_file(data.ctypes.data), data.flags.writeable

    async def keep(self, *data: Any) -> None:
        self.kept.extend(data)

    @concurrent
    async def keep_beside(self, data: Any) -> None:
        self.kept.append(data)

    async def drop(self) -> None:
        self.kept.clear()
        gc.collect()  # user code's errors may be in cycles with frames that hold what was lent

    async def totals(self) -> list[float]:
        return [float(data.sum()) for data in self.kept]

    async def count(self, number: int, data: Any) -> None:
        self.order.append(number)

    async def counted(self) -> list[int]:
        return self.order

    async def add_one(self, tensor: Any) -> float:
        tensor += 1
        return float(tensor.float().mean())

    async def make(self, size: int, value: int) -> np.ndarray:
        return np.full(size, value, np.uint8)

    async def make_in_buffer(self, size: int, value: int) -> np.ndarray:
        buffer = self.mesh.buffer(size, "uint8")
        buffer[:] = value
        return buffer

    async def produce(self, count: int, size: int) -> AsyncIterator[np.ndarray]:
        for i in range(count):
            yield np.full(size if i % 2 else 10, i, np.uint8)

    async def state(self) -> tuple[int, int, int, int]:
        """Open descriptors, arena mappings, mappings by a name, resident bytes of anonymous and shared memory."""
        resident = psutil.Process().memory_info().rss
        return len(os.listdir("/proc/self/fd")), arena_maps(), len(named_maps()), resident

    async def die(self) -> None:
        os.kill(os.getpid(), 9)

    async def forget_to_copy(self, other: Any) -> str:
        """Send an array that is never written; what becomes of it."""
        keep, Block.keep = Block.keep, lambda *_: None  # type: ignore[method-assign, assignment]
        try:
            await other.keep(np.ones(1 << 20, np.uint8))
        except Exception as error:  # whichever it is, the test is told
            return f"{type(error).__name__}: {error}"
        finally:
            Block.keep = keep  # type: ignore[method-assign]
        return "it was served"

    async def die_while_copying(self, other: Any, until: str) -> None:
        """Send an array, and be killed before it is written, when a file is there."""

        def hang(*_: Any) -> None:
            while not os.path.exists(until):
                time.sleep(0.001)
            os.kill(os.getpid(), 9)

        Block.keep = hang  # type: ignore[method-assign]
        await other.keep(np.ones(1 << 20, np.uint8))

    async def forward(self, other: Any, data: Any) -> Any:
        return await other.echo(data)
