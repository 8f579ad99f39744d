"""Task servers whose scheduler was killed: waited for, so that none runs twice, and killed if they don't end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable

from tinker_actors.scheduler.job_folder import JobFolder, kill_holder, try_lock, wait_for_lock
from tinker_actors.scheduler.job_records import Job


class Orphans:
    """Jobs that a former scheduler started and whose end it didn't see.

    Args:
        loop: On which `settle` is called.
        grace: Seconds that a process has to end by itself; it notices that its scheduler is gone.
        settle: Called once for each job when no process of it is left.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, grace: float, settle: Callable[[Job], None]) -> None:
        self._loop = loop
        self._grace = grace
        self._settle = settle
        self._killers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    def add(self, job: Job, folder: JobFolder) -> None:
        """Settle a job now, if no process of it is left, or as soon as that is so."""
        folder.root.mkdir(parents=True, exist_ok=True)
        lock = try_lock(folder.lock)
        if lock is not None:
            os.close(lock)
            self._loop.call_soon(self._gone, job)
            return
        self._killers[job.id] = self._loop.call_later(self._grace, kill_holder, folder.lock)

        def wait() -> None:
            wait_for_lock(folder.lock)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._gone, job)

        threading.Thread(target=wait, daemon=True, name=f"orphan-{job.id}").start()

    def close(self) -> None:
        """Settle no more; the next scheduler will."""
        self._closed = True
        for killer in self._killers.values():
            killer.cancel()

    def _gone(self, job: Job) -> None:
        if (killer := self._killers.pop(job.id, None)) is not None:
            killer.cancel()
        if not self._closed:
            self._settle(job)
