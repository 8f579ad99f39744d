"""From what a caller submits to what the scheduler takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from tinker_actors.errors import UnknownJobError
from tinker_actors.gateway.caller import LOCAL_TENANT, Caller
from tinker_actors.gateway.jobs.bodies import Submission
from tinker_actors.gateway.jobs.uploads import PREFIX, Uploads, shown
from tinker_actors.gateway.jobs.vetting import JOB_STORE, Allowed, vetted
from tinker_actors.gateway.refusals import RefusalError, not_found
from tinker_actors.scheduler.demand import request_of
from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.job_records import Job, JobRequest
from tinker_actors.scheduler.run_folder import RunFolder
from tinker_actors.scheduler.service import Scheduler


class Submissions:
    """Checks what is submitted.

    Args:
        scheduler: Of the jobs.
        root: Its folder.
        allowed: What a configuration may name.
        uploads: Of the tenants.
        most_priority: The highest priority that a tenant may ask for.
        most_unfinished: Jobs of a tenant that may be there without being over.
        most_kept: Jobs of a tenant that may be there, over or not.

    Attributes:
        uploads: Of the tenants.
        naming: Held from when a name is looked up until the job that has it is taken, and while something that jobs
            may name is deleted.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        root: Path,
        *,
        allowed: Allowed,
        uploads: Uploads,
        most_priority: Callable[[str], int] = lambda _: 0,
        most_unfinished: int = 500,
        most_kept: int = 10_000,
    ) -> None:
        self._scheduler, self._root, self._allowed = scheduler, root.resolve(), allowed
        self._most_priority = most_priority
        self._most_unfinished, self._most_kept = most_unfinished, most_kept
        self.uploads = uploads
        self.naming = asyncio.Lock()

    async def submit(self, body: Submission, caller: Caller) -> Job:
        """Take a job: once this has returned it is kept, whatever happens to the service.

        Raises:
            JobRefusedError: It could never start; says what could.
            ConfigError: The configuration can't work.
            RefusalError: It names what isn't allowed, the priority is beyond the tenant's, or the tenant has too many
                jobs.
        """
        async with self.naming:
            request = await self._request(body, caller)
            if body.key is None or not await self._scheduler.knows(caller.tenant, body.key):
                await self._check_room(caller.tenant, kept=True)
            return await self._scheduler.submit(request)

    async def resume(self, job: Job) -> Job:
        """Queue a failed or cancelled job again.

        Raises:
            JobStateError: It has succeeded, or is being cancelled.
            JobRefusedError: It could no longer start.
            UnknownJobError: It is deleted.
            RefusalError: Its tenant has too many jobs that aren't over.
        """
        async with self.naming:
            if job.state.is_over:
                await self._check_room(job.tenant)
            return await self._scheduler.resume(job.id)

    async def _check_room(self, tenant: str, *, kept: bool = False) -> None:
        counts = await self._scheduler.counts(tenant)
        unfinished = sum(count for state, count in counts.items() if not state.is_over)
        if unfinished >= self._most_unfinished:
            raise RefusalError(
                429,
                f"tenant {tenant!r} has {unfinished} jobs that aren't over; at most {self._most_unfinished} may be",
                code="too_many_jobs",
                headers={"Retry-After": "30"},
            )
        if kept and (number := sum(counts.values())) >= self._most_kept:
            raise RefusalError(
                429,
                f"tenant {tenant!r} has {number} jobs; at most {self._most_kept} are kept: delete some",
                code="too_many_jobs",
            )

    async def _request(self, body: Submission, caller: Caller) -> JobRequest:
        free = caller.sees_all or caller.tenant == LOCAL_TENANT
        if not free and body.priority > (most := self._most_priority(caller.tenant)):
            raise RefusalError(
                400,
                f"priority is {body.priority}; at most {most} is needed for tenant {caller.tenant!r}",
                code="priority",
            )

        async def find(name: str) -> str:
            if name.startswith(PREFIX):
                return self.uploads.path_of(caller.tenant, name)
            return await self._store_of(name, caller)

        return request_of(
            await vetted(body.config, self._allowed, find),
            directory=self._root,
            devices=body.devices,
            memory=body.memory,
            tenant=caller.tenant,
            priority=body.priority,
            key=body.key,
        )

    def shown(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """A job's configuration as it was submitted: with names where the job itself has paths."""
        return {key: self._shown(value) for key, value in config.items()}

    async def _store_of(self, name: str, caller: Caller) -> str:
        tenant = None if caller.sees_all else caller.tenant
        try:
            folder = await self._scheduler.folder(name.removeprefix(JOB_STORE), tenant)
        except UnknownJobError:
            raise not_found("job", name.removeprefix(JOB_STORE)) from None
        return str(RunFolder(JobFolder(Path(folder)).run).policies)

    def _shown(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.name_of(value)
        if isinstance(value, list):
            return [self._shown(entry) for entry in cast("list[Any]", value)]
        return self.shown(cast("dict[str, Any]", value)) if isinstance(value, dict) else value

    def name_of(self, text: str) -> str:
        """What a configuration calls a path of this service; other text as it is."""
        for name, base in self._allowed.models.items():
            if text == base and "/" in text:
                return name
        jobs, path = self._root / "jobs", Path(text)
        job = path.parent.parent
        run = RunFolder(JobFolder(job).run)
        if job.parent == jobs and path in (run.policies, run.base):
            return JOB_STORE + job.name
        return shown(text)
