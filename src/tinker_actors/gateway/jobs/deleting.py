"""Deleting jobs and uploads: when somebody asks for it, and when the time is over for which they are kept."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tinker_actors.errors import JobStateError, UnknownJobError
from tinker_actors.gateway.jobs.handover import hand_over_last
from tinker_actors.gateway.jobs.shared import scheduler_of, submissions_of
from tinker_actors.gateway.jobs.uploads import Kept
from tinker_actors.gateway.refusals import RefusalError, not_found
from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.job_records import Job
from tinker_actors.scheduler.states import JobState

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway

logger = logging.getLogger(__name__)

_OVER = tuple(state for state in JobState if state.is_over)
_SOON = 600.0
"""Seconds after which that is looked at again which others needed."""


async def delete_job(gateway: Gateway, job: Job, *, checkpoints: bool = False) -> None:
    """Delete a job that is over: its folder, its log and all that is known of it.

    Its checkpoints stay, as they are its tenant's by themselves; what it made last becomes some before, if it succeeded
    just now.

    Args:
        gateway: The gateway.
        job: The job.
        checkpoints: Delete those that were made of its snapshots as well.

    Raises:
        RefusalError: 409: it isn't over, or one that isn't over needs it. 404: it is deleted already.
    """
    scheduler = scheduler_of(gateway)
    try:
        async with gateway.handing, submissions_of(gateway).naming:
            folder = JobFolder(Path(await scheduler.folder(job.id)))
            _refuse_served(gateway, job, folder)
            if checkpoints:
                await scheduler.check_deletable(job.id)
                await _delete_checkpoints(gateway, job)
            elif job.state is JobState.SUCCEEDED:
                await hand_over_last(gateway, job, folder)
            await scheduler.delete(job.id)
    except JobStateError as error:
        raise RefusalError(409, str(error), code="wrong_state") from None
    except UnknownJobError:
        raise not_found("job", job.id) from None
    await scheduler.cleared()


def _refuse_served(gateway: Gateway, job: Job, folder: JobFolder) -> None:
    for model in gateway.runtime.models:
        if Path(model.catalogue_name).is_relative_to(folder.root):
            detail = f"the base model of job {job.id} is served here as {model.name!r}; it can be deleted once it isn't"
            raise RefusalError(409, detail, code="in_use")


async def _delete_checkpoints(gateway: Gateway, job: Job) -> None:
    found = gateway.records.checkpoints.where("model_id LIKE ?", f"{job.id}:%")
    for record in found:
        await gateway.checkpoints.delete(record)


async def uploads_of(gateway: Gateway, tenant: str | None) -> list[Kept]:
    """The uploads of a tenant, or of all tenants."""
    return await asyncio.to_thread(submissions_of(gateway).uploads.kept, tenant)


async def delete_upload(gateway: Gateway, kept: Kept) -> None:
    """Delete an upload that no job needs any more.

    Raises:
        RefusalError: 409: a job that isn't over names it. 404: it is deleted already.
    """
    async with submissions_of(gateway).naming:
        if users := await scheduler_of(gateway).users_of(str(kept.path)):
            detail = f"{kept.name} is used by {', '.join(users)}, which isn't over; cancel that first"
            raise RefusalError(409, detail, code="in_use")
        try:
            kept.path.unlink()
        except FileNotFoundError:
            raise not_found("upload", kept.name) from None


class Retention:
    """Deletes what was kept long enough.

    Args:
        gateway: The gateway.
        jobs: Seconds for which a job is kept after its end; for ever if None.
        uploads: The same for rows, after they were uploaded or last named by a submission.
    """

    def __init__(self, gateway: Gateway, *, jobs: float | None, uploads: float | None) -> None:
        self._gateway, self._jobs, self._uploads = gateway, jobs, uploads

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Delete what is due, when it is, as long as the block lasts."""
        if self._jobs is None and self._uploads is None:
            yield
            return
        task = asyncio.create_task(self._run(), name="retention of jobs")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def sweep(self, now: float) -> float:
        """Delete what is due.

        Args:
            now: Seconds since 1970.

        Returns:
            Seconds after which there may be more.
        """
        return min(await self._sweep_jobs(now), await self._sweep_uploads(now))

    async def _run(self) -> None:
        while True:
            try:
                pause = await self.sweep(time.time())
            except Exception:  # the boundary of a background task: a full disk, say, doesn't end what it is for
                logger.exception("what is due can't be deleted; it is tried again in %.0f s", _SOON)
                pause = _SOON
            await asyncio.sleep(pause)

    async def _sweep_jobs(self, now: float) -> float:
        if self._jobs is None:
            return float("inf")
        pause = self._jobs
        for job in await scheduler_of(self._gateway).jobs(_OVER):
            left = (job.ended or now) + self._jobs - now
            if left <= 0:
                left = _SOON
                try:
                    await delete_job(self._gateway, job)
                    continue
                except RefusalError as error:  # resumed just now, deleted by somebody else, or needed
                    logger.info("job %s is kept longer: %s", job.id, error.detail)
            pause = min(pause, left)
        return pause

    async def _sweep_uploads(self, now: float) -> float:
        if self._uploads is None:
            return float("inf")
        pause = self._uploads
        for kept in await uploads_of(self._gateway, None):
            left = kept.used + self._uploads - now
            if left <= 0:
                left = _SOON
                try:
                    await delete_upload(self._gateway, kept)
                    continue
                except RefusalError as error:
                    logger.info("%s of %s is kept longer: %s", kept.name, kept.tenant, error.detail)
            pause = min(pause, left)
        return pause
