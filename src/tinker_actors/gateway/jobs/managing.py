"""Routes that submit jobs, end them and tell how they stand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query

from tinker_actors.errors import JobRefusedError, JobStateError
from tinker_actors.gateway.caller import CallerOf, needs
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.jobs.bodies import (
    DeletedBody,
    JobBody,
    JobsBody,
    ResourcesBody,
    Submission,
    TransitionBody,
    TransitionsBody,
)
from tinker_actors.gateway.jobs.deleting import delete_job
from tinker_actors.gateway.jobs.shared import job_of, scheduler_of, submissions_of, tenant_of
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.scheduler.job_records import Job, JobQuery
from tinker_actors.scheduler.states import JobKind, JobState

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway

router = APIRouter()
_CHANGES = [needs("jobs")]
_READS = [needs("read", "jobs")]


@router.post("/jobs", dependencies=_CHANGES, status_code=201)
async def submit(body: Submission, caller: CallerOf, gateway: GatewayOf) -> JobBody:
    """Take a job: once this is answered it is kept, whatever happens to the service."""
    try:
        return _shown(gateway, await submissions_of(gateway).submit(body, caller))
    except JobRefusedError as error:
        raise RefusalError(400, str(error), code="never_fits") from None


@router.get("/jobs", dependencies=_READS)
async def jobs(
    caller: CallerOf,
    gateway: GatewayOf,
    state: Annotated[list[JobState] | None, Query()] = None,
    kind: Annotated[list[JobKind] | None, Query()] = None,
    text: Annotated[str, Query(max_length=200)] = "",
    before: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> JobsBody:
    """Jobs, the newest first: in one of some states, of one of some kinds, with a text in their name or id."""
    query = JobQuery(states=tuple(state or ()), kinds=tuple(kind or ()), text=text, before=before, limit=limit)
    found = await scheduler_of(gateway).search(query, tenant_of(caller))
    more = found[-1].number if len(found) == limit else None
    return JobsBody(jobs=[_shown(gateway, job) for job in found], before=more)


@router.get("/jobs/{job}", dependencies=_READS)
async def job(job: str, caller: CallerOf, gateway: GatewayOf) -> JobBody:
    """A job as it stands."""
    return _shown(gateway, await job_of(gateway, caller, job))


@router.get("/jobs/{job}/transitions", dependencies=_READS)
async def transitions(job: str, caller: CallerOf, gateway: GatewayOf) -> TransitionsBody:
    """How a job came to where it stands."""
    found = await job_of(gateway, caller, job)
    lines = await scheduler_of(gateway).transitions(found.id)
    return TransitionsBody(transitions=[TransitionBody.of(line) for line in lines])


@router.get("/jobs/{job}/wait", dependencies=_READS)
async def wait(
    job: str,
    caller: CallerOf,
    gateway: GatewayOf,
    state: Annotated[list[JobState] | None, Query()] = None,
    seconds: Annotated[float, Query(ge=0, le=60)] = 30.0,
) -> JobBody:
    """A job once it is in one of the states, or over; after so many seconds, as it stands."""
    found = await job_of(gateway, caller, job)
    try:
        async with asyncio.timeout(seconds):
            found = await scheduler_of(gateway).wait(found.id, tuple(state or ()))
    except TimeoutError:
        found = await job_of(gateway, caller, job)
    return _shown(gateway, found)


@router.post("/jobs/{job}/cancel", dependencies=_CHANGES)
async def cancel(job: str, caller: CallerOf, gateway: GatewayOf) -> JobBody:
    """End a job: at once if it is queued, else its process is told to. One that is over stays as it is."""
    found = await job_of(gateway, caller, job)
    return _shown(gateway, await scheduler_of(gateway).cancel(found.id))


@router.post("/jobs/{job}/resume", dependencies=_CHANGES)
async def resume(job: str, caller: CallerOf, gateway: GatewayOf) -> JobBody:
    """Queue a failed or cancelled job again; it goes on from its last checkpoint."""
    found = await job_of(gateway, caller, job)
    try:
        return _shown(gateway, await submissions_of(gateway).resume(found))
    except JobStateError as error:
        raise RefusalError(409, str(error), code="wrong_state") from None
    except JobRefusedError as error:
        raise RefusalError(400, str(error), code="never_fits") from None


@router.delete("/jobs/{job}", dependencies=_CHANGES)
async def delete(
    job: str, caller: CallerOf, gateway: GatewayOf, checkpoints: Annotated[bool, Query()] = False
) -> DeletedBody:
    """Delete a job that is over, with all that it left; its checkpoints only if that is asked for."""
    found = await job_of(gateway, caller, job)
    await delete_job(gateway, found, checkpoints=checkpoints)
    return DeletedBody(deleted=found.id)


@router.get("/free", dependencies=_READS)
async def free(gateway: GatewayOf) -> ResourcesBody:
    """What no job holds."""
    return ResourcesBody.of(await scheduler_of(gateway).free())


def _shown(gateway: Gateway, job: Job) -> JobBody:
    body = JobBody.of(job)
    return body.model_copy(update={"config": submissions_of(gateway).shown(body.config)})
