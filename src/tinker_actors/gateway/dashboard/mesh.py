"""The page's meshes: the gateway's own, for who may see every tenant's, and those of the caller's running jobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.responses import Response

from tinker_actors.actors.attach import fetch, running_meshes
from tinker_actors.errors import RunError
from tinker_actors.gateway.caller import Caller, CallerOf, needs
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.jobs.shared import tenant_of, with_folders
from tinker_actors.gateway.writing import json_response
from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.job_records import Job
from tinker_actors.scheduler.states import JobState

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway

router = APIRouter(prefix="/dashboard/api")

MOST_JOBS = 32
"""Running jobs whose meshes are asked."""


@router.get("/mesh", dependencies=[needs("read", "jobs")])
async def mesh(gateway: GatewayOf, caller: CallerOf) -> Response:
    """What runs at this moment."""
    return json_response(await describe(gateway, caller))


async def describe(gateway: Gateway, caller: Caller) -> list[dict[str, Any]]:
    """The meshes that a caller may see: each with the job that it belongs to, or None for the gateway's own."""
    found: list[dict[str, Any]] = []
    if caller.sees_all:
        found.append({"job": None, **asdict(await gateway.runtime.mesh.describe())})
    if gateway.scheduler is not None:
        tenant = tenant_of(caller)
        jobs = (await gateway.scheduler.jobs((JobState.RUNNING,), tenant))[-MOST_JOBS:]
        found += await asyncio.to_thread(_of_jobs, await with_folders(gateway.scheduler, jobs))
    return found


def _of_jobs(jobs: Sequence[tuple[Job, JobFolder]]) -> list[dict[str, Any]]:
    running = {mesh.pid: mesh for mesh in running_meshes()} if jobs else {}
    found: list[dict[str, Any]] = []
    for job, folder in jobs:
        mesh = running.get(_pid(folder))
        if mesh is None:
            continue
        try:
            found.append({"job": {"id": job.id, "name": job.name}, **asdict(fetch(mesh))})
        except RunError:  # it has ended meanwhile, or its event loop is blocked for seconds
            continue
    return found


def _pid(folder: JobFolder) -> int:
    """The process that runs a job: it has signed the lock of its folder."""
    try:
        return json.loads(folder.lock.read_text())[0]
    except (OSError, ValueError, LookupError, TypeError):
        return -1
