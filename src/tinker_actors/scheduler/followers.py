"""Who follows the jobs: each reader has, for every job that moved, where it stands last."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from tinker_actors.scheduler.job_records import Job


class Follower:
    """The jobs that have moved and that a reader has not taken yet: each once, as it stands last."""

    def __init__(self, tenant: str | None) -> None:
        self._tenant = tenant
        self._waiting: dict[str, Job] = {}
        self._some = asyncio.Event()

    def tell(self, job: Job) -> None:
        """A job was added or has moved."""
        if self._tenant in (None, job.tenant):
            self._waiting[job.id] = job
            self._some.set()

    async def next(self) -> Job:
        """The next job that has moved."""
        await self._some.wait()
        job = self._waiting.pop(next(iter(self._waiting)))
        if not self._waiting:
            self._some.clear()
        return job


class Followers:
    """All that follow."""

    def __init__(self) -> None:
        self._all: set[Follower] = set()

    def tell(self, job: Job) -> None:
        """A job was added or has moved."""
        for follower in self._all:
            follower.tell(job)

    @contextmanager
    def joined(self, tenant: str | None) -> Generator[Follower]:
        """A follower of a tenant's jobs, or of all, as long as the block runs."""
        follower = Follower(tenant)
        self._all.add(follower)
        try:
            yield follower
        finally:
            self._all.discard(follower)
