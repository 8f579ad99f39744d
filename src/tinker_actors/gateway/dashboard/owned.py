"""What the dashboard's routes have in common: the gateway, and the job that a path names, if it is the caller's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

from fastapi import Depends

from tinker_actors.gateway.caller import Caller, CallerOf
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.jobs.shared import folder_of, job_of
from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.job_records import Job
from tinker_actors.scheduler.run_folder import RunFolder

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway


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
    return Owned(await job_of(gateway, caller, job), await folder_of(gateway, caller, job))


async def _owned(job: str, gateway: GatewayOf, caller: CallerOf) -> Owned:
    return await find_job(gateway, caller, job)


OwnedJob: TypeAlias = Annotated[Owned, Depends(_owned)]
"""A route's parameter: the job that its path names, if the caller may know of it."""
