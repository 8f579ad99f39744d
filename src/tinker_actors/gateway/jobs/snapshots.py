"""Routes of what jobs make: their snapshots, and checkpoints of them that can be sampled."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from pydantic import BaseModel

from tinker_actors.gateway.caller import CallerOf, needs
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.jobs.handover import hand_over, path_of, snapshots_of
from tinker_actors.gateway.jobs.shared import folder_of, job_of
from tinker_actors.policies import Handle, PolicyId

router = APIRouter()


class SnapshotBody(BaseModel):
    """A snapshot that a job has made."""

    policy: PolicyId
    name: str
    step: int
    """Optimizer steps that the policy had behind it."""
    kind: str
    created: float
    """Seconds since 1970."""
    path: str
    """What samplers and clients know it by, once it is a checkpoint."""
    checkpoint: bool
    """Whether it is one: the last ones of a job that succeeded are, others once that is asked for."""


class SnapshotsBody(BaseModel):
    """A job's snapshots, by policy, the oldest first."""

    snapshots: list[SnapshotBody]


class CheckpointBody(BaseModel):
    """A checkpoint that can be sampled."""

    path: str
    """The model's name for the OpenAI-compatible API, and `model_path` of the Tinker API."""
    base_model: str


@router.get("/jobs/{job}/snapshots", dependencies=[needs("read", "jobs")])
async def snapshots(job: str, caller: CallerOf, gateway: GatewayOf) -> SnapshotsBody:
    """What a job has made so far."""
    folder = await folder_of(gateway, caller, job)
    found = [
        SnapshotBody(
            policy=snapshot.policy_id,
            name=Handle.parse(snapshot.handle).name,
            step=snapshot.step,
            kind=snapshot.kind,
            created=snapshot.created_at,
            path=path_of(job, snapshot),
            checkpoint=gateway.records.checkpoints.get(path_of(job, snapshot)) is not None,
        )
        for snapshot in await asyncio.to_thread(snapshots_of, folder)
    ]
    return SnapshotsBody(snapshots=found)


@router.post("/jobs/{job}/snapshots/{policy}/{snapshot}/checkpoint", dependencies=[needs("jobs")])
async def checkpoint(job: str, policy: str, snapshot: str, caller: CallerOf, gateway: GatewayOf) -> CheckpointBody:
    """Make a checkpoint of a snapshot, for its tenant to sample; asking again gives it again."""
    found = await job_of(gateway, caller, job)
    folder = await folder_of(gateway, caller, job)
    record = await hand_over(gateway, found, folder, policy, snapshot)
    return CheckpointBody(path=record.path, base_model=record.base_model)
