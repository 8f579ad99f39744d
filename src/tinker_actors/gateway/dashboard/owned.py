"""What of the gateway a caller may see: its tenant's jobs and their folders, and nothing of another tenant's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from fastapi import Depends, Request

from tinker_actors.errors import UnknownJobError
from tinker_actors.gateway.caller import Caller, CallerOf
from tinker_actors.gateway.refusals import RefusalError, not_found
from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.job_records import Job
from tinker_actors.scheduler.run_folder import RunFolder
from tinker_actors.scheduler.service import Scheduler

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway


def _gateway(request: Request) -> Any:
    return request.app.state.gateway


if TYPE_CHECKING:
    GatewayOf: TypeAlias = Gateway
else:
    GatewayOf = Annotated[Any, Depends(_gateway)]
    """A route's parameter: what all routes share."""


def tenant_of(caller: Caller) -> str | None:
    """Whose jobs a caller may know of; None for everybody's."""
    return None if caller.sees_all else caller.tenant


def scheduler_of(gateway: Gateway) -> Scheduler:
    """The scheduler.

    Raises:
        RefusalError: The gateway takes no jobs.
    """
    if gateway.scheduler is None:
        raise RefusalError(404, "this gateway takes no jobs", code="no_jobs")
    return gateway.scheduler


@dataclass(frozen=True, slots=True)
class Owned:
    """A job of the caller's.

    Attributes:
        job: As it stands.
        folder: What it left so far.
    """

    job: Job
    folder: JobFolder

    @property
    def run(self) -> RunFolder:
        """Its run folder."""
        return RunFolder(self.folder.run)


async def find_job(gateway: Gateway, caller: Caller, job: str) -> Owned:
    """A job of the caller's.

    Raises:
        RefusalError: There is none of this id that the caller may know of.
    """
    scheduler, tenant = scheduler_of(gateway), tenant_of(caller)
    try:
        found = await scheduler.job(job, tenant)
        folder = await scheduler.folder(job, tenant)
    except UnknownJobError:
        raise not_found("job", job) from None
    return Owned(found, JobFolder(Path(folder)))


async def _owned(job: str, gateway: GatewayOf, caller: CallerOf) -> Owned:
    return await find_job(gateway, caller, job)


OwnedJob: TypeAlias = Annotated[Owned, Depends(_owned)]
"""A route's parameter: the job that its path names, if the caller may know of it."""
