"""A scheduler that is killed by SIGKILL loses no job and runs none twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.scheduler.job_material import ONE, fake, finish, request, running, states, supervising, traced

from tinker_actors.actors import Mesh, RestartPolicy
from tinker_actors.scheduler.job_folder import try_lock
from tinker_actors.scheduler.job_store import JobStore
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.service import Scheduler
from tinker_actors.scheduler.states import JobState, Reason

JOBS, KILLS = 16, 25


def test_schedulers_killed_at_random_moments_lose_no_job_and_run_none_twice(tmp_path: Path):
    script = "tests.scheduler.killed_schedulers"
    arguments = [sys.executable, "-m", script, str(tmp_path), str(JOBS), str(KILLS), "1"]
    root = Path(__file__).parents[2]
    killed = subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=250, cwd=root)
    assert int(killed.stdout) > KILLS // 2  # else nothing was shown
    store = JobStore(tmp_path / "jobs.sqlite")
    jobs = store.jobs()
    assert len(jobs) == JOBS
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    assert all(job.failures == 0 for job in jobs)
    trace = traced(tmp_path)
    done = Counter(job for job, what, _ in trace if what == "done")
    assert done == {job.id: 1 for job in jobs}
    assert not [entry for entry in trace if entry[1] == "twice"]
    for job in jobs:
        begun = [attempt for name, what, attempt in trace if name == job.id and what == "begin"]
        assert begun == sorted(set(begun))
        assert next(attempt for name, what, attempt in trace if (name, what) == (job.id, "done")) == begun[-1]
    store.close()


async def test_what_a_task_server_said_counts_though_its_scheduler_was_killed(tmp_path: Path):
    async with supervising(tmp_path) as supervisor:
        job = supervisor.submit(request("0"))
        await supervisor.wait(job.id)
    # as if the scheduler had been killed before it saw the end
    store = JobStore(tmp_path / "jobs.sqlite")
    store._db.execute("UPDATE jobs SET state = 'running', ended = NULL")  # pyright: ignore[reportPrivateUsage]
    store.close()
    async with supervising(tmp_path) as supervisor:
        ended = await supervisor.wait(job.id)
        assert (ended.state, ended.reason, ended.attempt) == (JobState.SUCCEEDED, Reason.FINISHED, 1)


async def test_a_store_that_fails_stops_the_scheduler_and_the_next_one_knows_what_became_of_the_jobs(tmp_path: Path):
    failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    async with supervising(tmp_path, Resources(cpu_workers=2), on_failure=failed.set_result) as supervisor:
        done, other = supervisor.submit(request("hold")), supervisor.submit(request("hold", "0"))
        queued = supervisor.submit(request("0"))
        pid = await running(supervisor, done)
        await running(supervisor, other)
        supervisor.store._db.execute("PRAGMA query_only = ON")  # pyright: ignore[reportPrivateUsage]
        finish(pid)
        assert "readonly" in str(await failed)
        assert done.id not in supervisor.processes
        assert queued.id not in supervisor.processes
    async with supervising(tmp_path) as supervisor:
        ended = await asyncio.gather(*(supervisor.wait(job.id) for job in (done, other, queued)))
        assert [(job.state, job.attempt) for job in ended] == [
            (JobState.SUCCEEDED, 1),
            (JobState.SUCCEEDED, 2),
            (JobState.SUCCEEDED, 1),
        ]


async def test_a_scheduler_that_fails_is_started_anew_and_goes_on_with_its_jobs(tmp_path: Path):
    async with Mesh() as mesh:
        restart = RestartPolicy.on_failure(backoff=0.0)
        scheduler = await mesh.spawn(
            Scheduler, str(tmp_path), ONE, settings=SchedulerSettings(command=fake), restart=restart
        )
        job = await scheduler.submit(request("hold", "0"))
        await scheduler.wait(job.id, (JobState.RUNNING,))
        scheduler.tell.fail("the disk is full")
        await scheduler.jobs()  # answered by the new one
        ended = await scheduler.wait(job.id)
        assert (ended.state, ended.attempt, ended.failures) == (JobState.SUCCEEDED, 2, 0)


async def test_a_task_server_that_outlives_its_scheduler_keeps_its_place_until_it_is_gone(tmp_path: Path):
    async with supervising(tmp_path) as supervisor:
        job, other = supervisor.submit(request("hold", "0")), supervisor.submit(request("0"))
        await running(supervisor, job)
        supervisor.cancel(other.id)
    store = JobStore(tmp_path / "jobs.sqlite")
    store.begin(job.id)
    store.close()
    # a process of the job's that hears nothing
    lock = try_lock(tmp_path / "jobs" / job.id / "lock")
    assert lock is not None
    program = "import os, sys; from pathlib import Path; from tinker_actors.scheduler.job_folder import sign_lock;"
    program += "sign_lock(Path(sys.argv[1])); os.write(1, b'!'); os.read(0, 1)"
    wedged = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", program, str(tmp_path / "jobs" / job.id / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(lock,),
        process_group=0,
    )
    os.close(lock)
    assert wedged.stdout is not None
    assert wedged.stdin is not None
    assert await asyncio.to_thread(wedged.stdout.read, 1) == b"!"
    try:
        async with supervising(tmp_path, grace=0.2) as supervisor:
            supervisor.resume(other.id)
            assert supervisor.store.get(other.id).state is JobState.QUEUED
            assert (await supervisor.wait(job.id)).state is JobState.SUCCEEDED
            assert "queued: interrupted" in states(supervisor, job)
            assert (await supervisor.wait(other.id)).state is JobState.SUCCEEDED
            assert supervisor.ledger.free == ONE
        assert wedged.wait() == -signal.SIGKILL
    finally:
        wedged.kill()
        wedged.communicate()
