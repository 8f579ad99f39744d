"""Looks at the memory of jobs that have a bound, and ends those that exceed it.

No limit of the kernel's that a user may set does this: RLIMIT_AS counts address space, of which torch reserves far more
than it uses, and bounds each process alone. So the job's processes are measured, once a second. What is counted is
their proportional set size: a page that several processes share counts once. A job that grows by more than what is left
on the machine between two looks is not caught in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from pathlib import Path

import psutil

from tinker_actors.scheduler.task_child import TaskChild

_EVERY = 1.0
"""Seconds between two looks."""


class MemoryWatches:
    """All jobs that have a bound. Belongs to one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, child: TaskChild, most: int) -> None:
        """Watch a job's processes until they have ended.

        Args:
            child: The job's.
            most: Bytes that they may hold together.
        """
        task = asyncio.create_task(_watch(child, most))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Watch no more."""
        for task in self._tasks:
            task.cancel()


async def _watch(child: TaskChild, most: int) -> None:
    while child.code is None:
        held = await asyncio.to_thread(memory_of, child.pid)
        if held > most and child.code is None:
            child.exceed(
                # rounded up: what is over the bound is not to read as if it were the bound
                f"its processes held {math.ceil(held / 2**20)} MiB of memory, and resources.memory is "
                f"{most / 2**20:.0f} MiB; ask for more, or let it need less"
            )
            return
        await asyncio.wait([child.ended], timeout=_EVERY)


def memory_of(pid: int) -> int:
    """Bytes that a process and all below it hold; 0 for one that is gone. Reads files."""
    try:
        parent = psutil.Process(pid)
        processes = [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return 0
    return sum(_held(process) for process in processes)


def _held(process: psutil.Process) -> int:
    try:
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:  # no Linux, or it has just ended
        pass
    with contextlib.suppress(psutil.Error):
        return process.memory_info().rss
    return 0
