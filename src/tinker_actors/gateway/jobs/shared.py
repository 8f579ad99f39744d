"""What the routes of the jobs API have in common."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tinker_actors.errors import UnknownJobError
from tinker_actors.gateway.caller import Caller
from tinker_actors.gateway.jobs.submissions import Submissions
from tinker_actors.gateway.refusals import RefusalError, not_found
from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.job_records import Job
from tinker_actors.scheduler.service import Scheduler

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway


def scheduler_of(gateway: Gateway) -> Scheduler:
    """The scheduler.

    Raises:
        RefusalError: The gateway takes no jobs.
    """
    if gateway.scheduler is None:
        raise RefusalError(404, "this gateway takes no jobs", code="no_jobs")
    return gateway.scheduler


def submissions_of(gateway: Gateway) -> Submissions:
    """What checks submissions; errors as `scheduler_of`."""
    if gateway.submissions is None:
        raise RefusalError(404, "this gateway takes no jobs", code="no_jobs")
    return gateway.submissions


def tenant_of(caller: Caller) -> str | None:
    """Whose jobs a caller may know of; None for everybody's."""
    return None if caller.sees_all else caller.tenant


async def job_of(gateway: Gateway, caller: Caller, job: str) -> Job:
    """A job that the caller may know of.

    Raises:
        RefusalError: There is none of this id, or none that it may know of.
    """
    try:
        return await scheduler_of(gateway).job(job, tenant_of(caller))
    except UnknownJobError:
        raise not_found("job", job) from None


async def folder_of(gateway: Gateway, caller: Caller, job: str) -> JobFolder:
    """The folder of a job that the caller may know of; errors as `job_of`."""
    try:
        return JobFolder(Path(await scheduler_of(gateway).folder(job, tenant_of(caller))))
    except UnknownJobError:
        raise not_found("job", job) from None


async def with_folders(scheduler: Scheduler, jobs: Sequence[Job]) -> list[tuple[Job, JobFolder]]:
    """Jobs and their folders, without those that were deleted meanwhile."""
    found: list[tuple[Job, JobFolder]] = []
    for job in jobs:
        with suppress(UnknownJobError):
            found.append((job, JobFolder(Path(await scheduler.folder(job.id)))))
    return found
