"""What a job made becomes checkpoints of its tenant: snapshots that the gateway's samplers can serve.

A job has a store of its own, in its folder. A snapshot of it is taken into the store that the gateway's samplers share,
under the id `JOB:POLICY`; its files are linked rather than copied where both stores lie on one file system.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tinker_actors.errors import PolicyError, UnknownJobError
from tinker_actors.gateway.jobs.shared import submissions_of
from tinker_actors.gateway.record_kinds import CheckpointRecord
from tinker_actors.gateway.records import LIVING
from tinker_actors.gateway.refusals import RefusalError, not_found
from tinker_actors.policies import Handle, PolicySpec, Snapshot, SnapshotStore
from tinker_actors.policies.sealing import MANIFEST
from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.job_records import Job
from tinker_actors.scheduler.run_folder import RunFolder
from tinker_actors.scheduler.states import JobKind, JobState

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway
    from tinker_actors.scheduler.service import Scheduler

logger = logging.getLogger(__name__)

_AGAIN = 5.0
"""Seconds after which jobs are followed again when that failed."""

_DONE = "handed-over"
"""A file in a job's folder: what it made is taken over already, and may have been deleted since."""


def path_of(job: str, snapshot: Snapshot) -> str:
    """What clients call a job's snapshot."""
    name = Handle.parse(snapshot.handle).name
    return str(Handle(policy_id=f"{job}:{snapshot.policy_id}", kind="sampler_weights", name=name))


def snapshots_of(folder: JobFolder) -> list[Snapshot]:
    """What a job has made so far, by policy, the oldest first. Reads files."""
    store = SnapshotStore(RunFolder(folder.run).policies)
    try:
        return [snapshot for policy in store.policies() for snapshot in store.list(policy)]
    except PolicyError:  # it has made nothing yet
        return []


async def hand_over(gateway: Gateway, job: Job, folder: JobFolder, policy: str, name: str) -> CheckpointRecord:
    """Make a checkpoint of a job's snapshot; asking again gives it again.

    Raises:
        RefusalError: The job has no such snapshot, or its base model is not served here.
    """
    async with gateway.handing:
        return await _hand_over(gateway, job, folder, policy, name)


async def _hand_over(gateway: Gateway, job: Job, folder: JobFolder, policy: str, name: str) -> CheckpointRecord:
    store = SnapshotStore(RunFolder(folder.run).policies)
    try:
        wanted = str(Handle(policy_id=policy, kind="sampler_weights", name=name))
        found = await asyncio.to_thread(store.get, wanted)
    except PolicyError:
        raise not_found("snapshot", f"{policy}/{name} of {job.id}") from None
    path = path_of(job.id, found)
    if present := gateway.records.checkpoints.where(f"path = ? AND {LIVING}", path, time.time()):
        return present[0]
    model = _served_as(gateway, found.base_model)
    async with gateway.checkpoints.storing(f"{job.id}:{policy}", model[0]) as handle:
        target = SnapshotStore(gateway.runtime.store)
        rank, size = await asyncio.to_thread(_take, store, found, target, handle, model[1])
        record = CheckpointRecord(
            path=path,
            tenant=job.tenant,
            model_id=f"{job.id}:{policy}",
            kind="sampler",
            handle=handle,
            base_model=model[0],
            rank=rank,
            created_at=found.created_at,
            size=size,
            user_metadata={"job": job.id, "name": job.name, "step": found.step},
        )
        await gateway.checkpoints.put(record)
    return record


@asynccontextmanager
async def handing_over(gateway: Gateway) -> AsyncIterator[None]:
    """Make checkpoints of the last snapshots of every job that succeeds, as long as the block lasts."""
    if gateway.scheduler is None:
        yield
        return
    task = asyncio.create_task(_keep_following(gateway, gateway.scheduler), name="handover of what jobs made")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _keep_following(gateway: Gateway, scheduler: Scheduler) -> None:
    """Follow the jobs, and again if that fails: what ended meanwhile is found then."""
    while True:
        try:
            await _follow(gateway, scheduler)
        except Exception:  # the boundary of a background task: the scheduler is started anew, say
            logger.exception(
                "the jobs can't be followed to take over what they made; it is tried again in %g s", _AGAIN
            )
        await asyncio.sleep(_AGAIN)


async def _follow(gateway: Gateway, scheduler: Scheduler) -> None:
    async for job in scheduler.stream.changes():
        if job is None:  # from here on nothing is missed
            for done in await scheduler.jobs((JobState.SUCCEEDED,)):
                await _hand_over_its(gateway, scheduler, done)
        elif job.state is JobState.SUCCEEDED and not job.deleted:
            await _hand_over_its(gateway, scheduler, job)


async def _hand_over_its(gateway: Gateway, scheduler: Scheduler, job: Job) -> None:
    async with gateway.handing:
        try:
            await hand_over_last(gateway, job, JobFolder(Path(await scheduler.folder(job.id))))
        except UnknownJobError:  # it was deleted, and this done before
            return
        except Exception:  # the boundary of a background task: a full disk, say; the next service tries again
            logger.exception("job %s: what it made can't be taken over", job.id)


async def hand_over_last(gateway: Gateway, job: Job, folder: JobFolder) -> None:
    """Make checkpoints of the last snapshots of a job that has succeeded, if that wasn't done before.

    Those of a base model that isn't served stay in the job's folder; they are looked at again if it is served later.

    Args:
        gateway: The gateway; the caller holds its `handing`.
        job: The job.
        folder: Its folder.
    """
    mark = folder.root / _DONE
    if mark.exists() or job.kind in (JobKind.EVALUATION, JobKind.INFERENCE):
        return
    snapshots = await asyncio.to_thread(snapshots_of, folder)
    last = {snapshot.policy_id: snapshot for snapshot in snapshots if "." not in snapshot.policy_id}
    try:
        for policy, snapshot in last.items():
            await _hand_over(gateway, job, folder, policy, Handle.parse(snapshot.handle).name)
    except RefusalError as error:
        logger.info("job %s: what it made is not taken over: %s", job.id, error.detail)
        return
    mark.touch()


def _served_as(gateway: Gateway, base_model: str) -> tuple[str, str]:
    """The name under which a base model is served, and what its engines call it."""
    for served in gateway.runtime.models:
        own = served.catalogue_name
        if base_model in (own, os.path.abspath(own)):
            return served.name, own
    name = submissions_of(gateway).name_of(base_model)
    how = "" if name == base_model else f"; serve it as a model with base = {name!r}, or name it as a job's model.name"
    raise RefusalError(
        409,
        f"its base model is {name!r}, which is not served here; {sorted(gateway.runtime.engines)} are{how}",
        code="not_served",
    )


def _take(
    source: SnapshotStore, found: Snapshot, target: SnapshotStore, handle: str, base_model: str
) -> tuple[int, int]:
    """Take the snapshot into the other store; the rank of its adapter (0 for full weights) and its bytes."""
    folder = source.fetch(found)
    manifest = source.manifest(found.handle)

    def write(into: Path) -> None:
        for file in folder.rglob("*"):
            if file.is_file() and file.name != MANIFEST:
                place = into / file.relative_to(folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                _link(file, place)

    origin = replace(manifest.origin, base_model=base_model, parent=None)
    target.publish(Handle.parse(handle).policy_id, write, origin, handle=handle)
    rank = PolicySpec.from_plain(manifest.spec).rank if manifest.spec is not None and found.kind == "lora" else 0
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return rank, size


def _link(file: Path, place: Path) -> None:
    try:
        os.link(file, place)
    except OSError:  # on another file system
        shutil.copyfile(file, place)
