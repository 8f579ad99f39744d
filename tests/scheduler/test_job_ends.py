"""However an attempt ends: it is seen at once, and all that it owned is free, once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from tests.scheduler.job_material import ONE, finish, request, running, states, supervising, traced

from tinker_actors.scheduler.job_folder import try_lock
from tinker_actors.scheduler.resources import Ledger, Resources
from tinker_actors.scheduler.states import JobState, Reason
from tinker_actors.scheduler.verdict import RetryPolicy

MANY = Resources(cpu_workers=4)


async def test_a_crash_is_seen_in_the_turn_of_the_loop_in_which_it_is_known(tmp_path: Path):
    async with supervising(tmp_path, retry=RetryPolicy(retries=0)) as supervisor:
        job = supervisor.submit(request("hold"))
        pid = await running(supervisor, job)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - the loop stands still meanwhile
        for _ in range(3):  # no timer runs out in these
            await asyncio.sleep(0)
        ended = supervisor.store.get(job.id)
        assert (ended.state, ended.reason) == (JobState.FAILED, Reason.CRASHED)
        assert supervisor.ledger.free == ONE


async def test_whatever_the_ends_everything_is_freed_once(tmp_path: Path, monkeypatch: Any):
    freed: Counter[tuple[str, int]] = Counter()
    release = Ledger.release

    def counted(self: Ledger, job: str, attempt: int) -> bool:
        done = release(self, job, attempt)
        freed[job, attempt] += done
        return done

    monkeypatch.setattr(Ledger, "release", counted)
    async with supervising(tmp_path, MANY, grace=0.2, retry=RetryPolicy(retries=1, backoff=0.0)) as supervisor:
        own = psutil.Process()
        before, children = own.num_fds(), len(own.children())
        ways = (("0.01",), ("crash",), ("fail", "0.01"), ("refuse",), ("give up",), ("absent",), ("hold",), ("deaf",))
        jobs = [supervisor.submit(request(*do)) for _ in range(2) for do in ways]
        for job in jobs:
            if job.config["do"] in (["hold"], ["deaf"]):
                supervisor.cancel((await supervisor.wait(job.id, [JobState.RUNNING])).id)
        for job in jobs:
            await supervisor.wait(job.id)
        assert supervisor.ledger.free == MANY
        attempts = {(job.id, number + 1) for job in jobs for number in range(supervisor.store.get(job.id).attempt)}
        assert freed == Counter(dict.fromkeys(attempts, 1))
        assert (own.num_fds(), len(own.children())) == (before, children)
        for job in jobs:
            lock = try_lock(supervisor.folder(job.id).lock)
            assert lock is not None
            os.close(lock)


async def test_drained_jobs_save_and_are_queued_and_nothing_starts_any_more(tmp_path: Path):
    async with supervising(tmp_path, MANY, retry=RetryPolicy(retries=0)) as supervisor:
        first, other = (supervisor.submit(request("hold")) for _ in range(2))
        await running(supervisor, first)
        await running(supervisor, other)
        draining = asyncio.create_task(supervisor.drain())
        await asyncio.sleep(0)
        late = supervisor.submit(request("hold"))
        await draining
        for job in (first, other):
            assert states(supervisor, job)[-1] == "queued: interrupted"
        assert supervisor.store.get(late.id).state is JobState.QUEUED
        assert supervisor.ledger.free == MANY
        assert [what for _, what, _ in traced(tmp_path)].count("saved") == 2
    async with supervising(tmp_path, MANY) as supervisor:  # the next one goes on with all of them
        for job in (first, other, late):
            finish(await running(supervisor, job))
            assert (await supervisor.wait(job.id)).state is JobState.SUCCEEDED


async def test_a_job_that_does_not_save_in_time_is_stopped_all_the_same(tmp_path: Path):
    async with supervising(tmp_path, save_grace=0.1, grace=0.1) as supervisor:
        job = supervisor.submit(request("deaf"))
        await running(supervisor, job)
        async with asyncio.timeout(60):
            await supervisor.drain()
        assert states(supervisor, job)[-1] == "queued: interrupted"


async def test_a_job_that_only_loads_yet_is_not_waited_for(tmp_path: Path):
    async with supervising(tmp_path, save_grace=3600.0) as supervisor:
        job = supervisor.submit(request("slow to load"))
        assert job.state is JobState.STARTING
        async with asyncio.timeout(60):
            await supervisor.drain()
        assert states(supervisor, job)[-2:] == ["starting: dispatched", "queued: interrupted"]
