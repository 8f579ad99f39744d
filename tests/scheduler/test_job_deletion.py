"""Jobs that are over are deleted, whole and once; no others are."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.scheduler.job_material import ONE, fake, request, supervising

from tinker_actors.actors import Mesh
from tinker_actors.errors import JobError, JobStateError, UnknownJobError
from tinker_actors.scheduler.deletion import Deletions
from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.job_store import JobStore
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.service import Scheduler
from tinker_actors.scheduler.states import JobState, Reason

FILES = 40


@asynccontextmanager
async def scheduling(root: Path, capacity: Resources = ONE) -> AsyncIterator[Scheduler]:
    async with Mesh() as mesh:
        yield await mesh.spawn(Scheduler, str(root), capacity, settings=SchedulerSettings(command=fake))


async def over(scheduler: Scheduler, *do: str, **more: str) -> str:
    """A job that has come to its end."""
    return (await scheduler.wait((await scheduler.submit(request(*do, **more))).id)).id


async def test_a_job_that_is_over_goes_with_its_folder_its_log_and_its_key(tmp_path: Path):
    async with scheduling(tmp_path) as scheduler:
        job, other = await over(scheduler, "0", key="k"), await over(scheduler, "0")
        heard = scheduler.stream.changes()
        await anext(heard)
        deleted = await scheduler.delete(job)
        assert (deleted.id, deleted.deleted, deleted.state) == (job, True, JobState.SUCCEEDED)
        told = await anext(heard)
        assert told is not None
        assert (told.id, told.deleted) == (job, True)
        await heard.aclose()
        await scheduler.cleared()
        assert [path.name for path in (tmp_path / "jobs").iterdir()] == [other]
        assert [left.id for left in await scheduler.jobs()] == [other]
        for ask in (scheduler.job, scheduler.folder, scheduler.transitions, scheduler.resume, scheduler.delete):
            with pytest.raises(UnknownJobError):
                await ask(job)
        assert await over(scheduler, "0", key="k") != job


async def test_a_job_that_is_not_over_and_another_tenants_are_not_deleted(tmp_path: Path):
    async with scheduling(tmp_path) as scheduler:
        running = await scheduler.submit(request("hold"))
        queued = await scheduler.submit(request("hold"))
        await scheduler.wait(running.id, (JobState.RUNNING,))
        for job, state in ((running, "running"), (queued, "queued")):
            with pytest.raises(JobStateError, match=f"{state}; only one that is over can be deleted: cancel it first"):
                await scheduler.delete(job.id)
        await scheduler.cancel(queued.id)
        with pytest.raises(UnknownJobError):
            await scheduler.delete(queued.id, "another")
        await scheduler.delete(queued.id)  # it was never started and has no folder
        assert [job.id for job in await scheduler.jobs()] == [running.id]


async def test_a_job_whose_files_another_one_needs_stays_until_that_is_over(tmp_path: Path):
    async with scheduling(tmp_path) as scheduler:
        job = await over(scheduler, "0")
        folder = JobFolder(Path(await scheduler.folder(job)))
        named = replace(request("hold"), config={"do": ["hold"], "sampling": {"store": [f"{folder.run}/policies"]}})
        user = await scheduler.submit(named)
        with pytest.raises(JobStateError, match=f"used by {user.id}"):
            await scheduler.delete(job)
        assert await scheduler.users_of(str(folder.root)) == [user.id]
        assert await scheduler.users_of(str(folder.root), "another") == []
        await scheduler.cancel(user.id)
        await scheduler.wait(user.id)
        await scheduler.delete(job)


async def test_of_two_deletions_one_happens_and_of_deletion_and_resuming_the_first_decides(tmp_path: Path):
    async with scheduling(tmp_path) as scheduler:
        job = await over(scheduler, "give up")
        outcomes = await asyncio.gather(*(scheduler.delete(job) for _ in range(4)), return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Job", *["UnknownJobError"] * 3]
        first, second = await over(scheduler, "refuse", "hold"), await over(scheduler, "refuse", "hold")
        resumed, refused = await asyncio.gather(
            scheduler.resume(first), scheduler.delete(first), return_exceptions=True
        )
        assert not isinstance(resumed, BaseException)
        assert isinstance(refused, JobStateError)
        assert (await scheduler.job(first)).state is JobState.STARTING
        deleted, refused = await asyncio.gather(
            scheduler.delete(second), scheduler.resume(second), return_exceptions=True
        )
        assert not isinstance(deleted, BaseException)
        assert isinstance(refused, UnknownJobError)


async def test_nothing_is_deleted_where_the_store_cannot_be_written(tmp_path: Path):
    async with supervising(tmp_path) as supervisor:
        job = await supervisor.wait(supervisor.submit(request("0")).id)
        deletions = Deletions(supervisor.store, supervisor.jobs)
        supervisor.store._db.execute("PRAGMA query_only = ON")  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(JobError, match="readonly"):
            deletions.delete(job.id)
        assert supervisor.folder(job.id).request.is_file()
        supervisor.store._db.execute("PRAGMA query_only = OFF")  # pyright: ignore[reportPrivateUsage]
        deletions.delete(job.id)
        await deletions.cleared()
        assert list(supervisor.jobs.iterdir()) == []


async def test_the_queue_counts_the_starts_of_deleted_jobs_on(tmp_path: Path):
    async with supervising(tmp_path) as supervisor:
        ended = [await supervisor.wait(supervisor.submit(request("0")).id) for _ in range(3)]
        for job in ended:
            supervisor.store.delete(job.id)
        assert supervisor.store.starts == 3
        later = await supervisor.wait(supervisor.submit(request("0")).id)
        assert (later.start, later.since, later.number) == (4, 3, 4)


async def test_deletions_that_were_killed_leave_every_job_whole_or_gone(tmp_path: Path):
    store = JobStore(tmp_path / "jobs.sqlite")
    store._db.execute("PRAGMA synchronous = OFF")  # pyright: ignore[reportPrivateUsage]
    jobs = [store.add(request("0")).id for _ in range(60)]
    for job in jobs:
        store.move(job, JobState.CANCELLED, Reason.CANCEL_ASKED)
        (tmp_path / "jobs" / job).mkdir(parents=True)
        for number in range(FILES):
            (tmp_path / "jobs" / job / f"{number}").touch()
    store.close()
    script = [sys.executable, "-m", "tests.scheduler.killed_deletions", str(tmp_path), "12", "1"]
    root = Path(__file__).parents[2]
    killed = subprocess.run(script, check=True, capture_output=True, text=True, timeout=100, cwd=root)  # noqa: ASYNC221
    assert int(killed.stdout) > 3  # else nothing was shown
    async with scheduling(tmp_path) as scheduler:
        await scheduler.cleared()
        left = {job.id for job in await scheduler.jobs()}
    assert {path.name for path in (tmp_path / "jobs").iterdir()} == left
    assert len(left) < len(jobs)
    assert all(len(list((tmp_path / "jobs" / job).iterdir())) == FILES for job in left)
    store = JobStore(tmp_path / "jobs.sqlite")
    logged = {row[0] for row in store._db.execute("SELECT DISTINCT job FROM transitions")}  # pyright: ignore[reportPrivateUsage]
    store.close()
    assert logged == left
