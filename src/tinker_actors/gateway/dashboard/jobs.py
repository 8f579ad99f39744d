"""The page's jobs: a list by pages, one by itself, its output and metrics; and ending or resuming it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from tinker_actors.actors.exits import end_of
from tinker_actors.errors import JobRefusedError, JobStateError, UnknownJobError
from tinker_actors.gateway.caller import CallerOf, needs
from tinker_actors.gateway.dashboard.job_rows import row, whole
from tinker_actors.gateway.dashboard.metrics_file import read_metrics
from tinker_actors.gateway.dashboard.owned import Owned, OwnedJob
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.jobs.deleting import delete_job
from tinker_actors.gateway.jobs.shared import scheduler_of, submissions_of, tenant_of, with_folders
from tinker_actors.gateway.refusals import RefusalError, not_found
from tinker_actors.gateway.writing import json_response
from tinker_actors.scheduler.job_records import Job, JobQuery
from tinker_actors.scheduler.states import JobKind, JobState

router = APIRouter(prefix="/dashboard/api")

_LOG_BYTES = 64 << 10


@router.get("/about", dependencies=[needs("read", "jobs")])
async def about(gateway: GatewayOf, caller: CallerOf) -> Response:
    """Who asks and what there is."""
    return json_response(
        {
            "tenant": caller.tenant,
            "key": caller.key,
            "sees_all": caller.sees_all,
            "may_end_jobs": caller.may("jobs"),
            "takes_jobs": gateway.scheduler is not None,
            "kinds": [kind.value for kind in JobKind],
            "states": [state.value for state in JobState],
        }
    )


@router.get("/jobs", dependencies=[needs("read", "jobs")])
async def jobs(
    gateway: GatewayOf,
    caller: CallerOf,
    state: Annotated[list[JobState], Query(default_factory=list, max_length=16)],
    kind: Annotated[list[JobKind], Query(default_factory=list, max_length=16)],
    text: Annotated[str, Query(max_length=200)] = "",
    before: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """A page of jobs, the newest first, and how many of all are in each state."""
    scheduler, tenant = scheduler_of(gateway), tenant_of(caller)
    query = JobQuery(states=tuple(state), kinds=tuple(kind), text=text, before=before, limit=limit + 1)
    found = await scheduler.search(query, tenant)
    counts = await scheduler.counts(tenant)
    shown = await with_folders(scheduler, found[:limit])
    rows = await asyncio.to_thread(lambda: [row(*pair) for pair in shown])
    return json_response(
        {
            "jobs": rows,
            "more": len(found) > limit,
            "counts": {state.value: count for state, count in counts.items()},
        }
    )


@router.get("/jobs/{job}", dependencies=[needs("read", "jobs")])
async def job(gateway: GatewayOf, caller: CallerOf, owned: OwnedJob) -> Response:
    """One job."""
    transitions = await scheduler_of(gateway).transitions(owned.job.id, tenant_of(caller))
    config = submissions_of(gateway).shown(owned.job.config)
    return json_response(await asyncio.to_thread(whole, owned.job, owned.folder, config, transitions))


@router.get("/jobs/{job}/log", dependencies=[needs("read", "jobs")])
async def log(owned: OwnedJob) -> Response:
    """The end of what the job's processes printed."""
    text = await asyncio.to_thread(end_of, owned.folder.log, _LOG_BYTES)
    return json_response({"text": text, "most": _LOG_BYTES})


@router.get("/jobs/{job}/metrics", dependencies=[needs("read", "jobs")])
async def metrics(owned: OwnedJob, cursor: Annotated[str, Query(max_length=64)] = "") -> Response:
    """What was measured, from the beginning or from a cursor on."""
    reading = await asyncio.to_thread(read_metrics, owned.run.metrics, cursor)
    return json_response(None if reading is None else asdict(reading))


@router.post("/jobs/{job}/cancel", dependencies=[needs("jobs")])
async def cancel(gateway: GatewayOf, caller: CallerOf, owned: OwnedJob) -> Response:
    """End a job."""
    return await _changed(owned, lambda job: scheduler_of(gateway).cancel(job.id, tenant_of(caller)))


@router.post("/jobs/{job}/resume", dependencies=[needs("jobs")])
async def resume(gateway: GatewayOf, owned: OwnedJob) -> Response:
    """Queue a failed or cancelled job again."""
    return await _changed(owned, submissions_of(gateway).resume)


@router.delete("/jobs/{job}", dependencies=[needs("jobs")])
async def delete(gateway: GatewayOf, owned: OwnedJob) -> Response:
    """Delete a job that is over; its checkpoints stay."""
    await delete_job(gateway, owned.job)
    return json_response({"deleted": owned.job.id})


async def _changed(owned: Owned, change: Callable[[Job], Awaitable[Job]]) -> Response:
    try:
        job = await change(owned.job)
    except UnknownJobError:
        raise not_found("job", owned.job.id) from None
    except (JobStateError, JobRefusedError) as error:
        raise RefusalError(409, str(error), code="conflict") from None
    return json_response(await asyncio.to_thread(row, job, owned.folder))
