"""Jobs with real processes: how they end, what that frees, and the races of schedulers."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sqlite3
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.scheduler.job_material import ONE, fake, finish, request, running, states, supervising, traced

from tinker_actors.errors import JobError, JobRefusedError, JobStateError
from tinker_actors.scheduler.queue import Quota, Rules
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.states import JobState, Reason
from tinker_actors.scheduler.supervisor import Supervisor
from tinker_actors.scheduler.verdict import RetryPolicy

TWO = Resources(cpu_workers=2)


async def test_a_job_goes_its_way_and_frees_what_it_held(tmp_path: Path):
    async with supervising(tmp_path) as supervisor:
        job = supervisor.submit(request("hold"))
        assert job.state is JobState.STARTING
        assert supervisor.ledger.free == Resources()
        finish(await running(supervisor, job))
        ended = await supervisor.wait(job.id)
        assert (ended.state, ended.reason) == (JobState.SUCCEEDED, Reason.FINISHED)
        assert supervisor.ledger.free == ONE
        assert states(supervisor, job) == [
            "queued: submitted",
            "starting: dispatched",
            "running: started",
            "succeeded: finished",
        ]
        assert ended.started is not None
        assert ended.ended is not None
        assert ended.submitted <= ended.started <= ended.ended


@pytest.mark.parametrize("how", ["ends", "is killed", "is cancelled"])
async def test_one_slot_two_jobs_the_second_starts_as_the_first_is_gone(tmp_path: Path, how: str):  # C14
    async with supervising(tmp_path, retry=RetryPolicy(retries=0)) as supervisor:
        first, second = supervisor.submit(request("hold")), supervisor.submit(request("hold"))
        assert second.state is JobState.QUEUED
        pid = await running(supervisor, first)
        if how == "ends":
            finish(pid)
        elif how == "is killed":
            os.kill(pid, signal.SIGKILL)
        else:
            supervisor.cancel(first.id)
        await supervisor.wait(first.id)
        # no turn of the loop lies between the end of the one and the start of the other
        assert supervisor.store.get(second.id).state is JobState.STARTING
        await running(supervisor, second)


async def test_who_starts_next_is_decided_without_reading_what_waits(tmp_path: Path):
    async with supervising(tmp_path) as supervisor:
        await running(supervisor, supervisor.submit(request("hold")))
        waiting = supervisor.submit(request("hold"))
        with sqlite3.connect(supervisor.store.path) as other:
            other.execute("UPDATE jobs SET config = 'no JSON' WHERE id = ?", (waiting.id,))
        other.close()
        assert supervisor.submit(request("hold")).state is JobState.QUEUED


async def test_an_attempt_that_ends_twice_frees_nothing_of_another_job(tmp_path: Path):
    async with supervising(tmp_path) as supervisor:
        first = supervisor.submit(request("hold", "hold"))
        os.kill(await running(supervisor, first), signal.SIGKILL)
        await supervisor.wait(first.id, [JobState.QUEUED])
        await running(supervisor, first)  # the second attempt holds the slot now
        supervisor._settle(first.id, 1, "exited with status 0", 0, None)  # pyright: ignore[reportPrivateUsage]
        assert supervisor.ledger.free == Resources()
        assert supervisor.store.get(first.id).state is JobState.RUNNING
        assert supervisor.store.move(first.id, JobState.FAILED, Reason.CRASHED, attempt=1) is None
        finish(supervisor.processes[first.id])
        assert (await supervisor.wait(first.id)).state is JobState.SUCCEEDED
        second = supervisor.submit(request("hold"))
        supervisor._settle(first.id, 2, "exited with status 0", 0, None)  # pyright: ignore[reportPrivateUsage]
        assert supervisor.ledger.free == Resources()
        assert supervisor.store.get(second.id).state is JobState.STARTING


@pytest.mark.parametrize("do", ["absent", "refuse"])
async def test_a_start_failure_is_reported_as_one_and_the_next_job_starts(tmp_path: Path, do: str):
    async with supervising(tmp_path) as supervisor:
        first = supervisor.submit(request("hold"))
        pid = await running(supervisor, first)
        broken, next_one = supervisor.submit(request(do)), supervisor.submit(request("hold"))
        finish(pid)
        failed = await supervisor.wait(broken.id)
        assert (failed.state, failed.reason) == (JobState.FAILED, Reason.START_FAILED)
        assert ("no such thing" if do == "refuse" else "/no/such/program") in failed.detail
        assert states(supervisor, broken)[1:] == ["starting: dispatched", "failed: start failed"]
        await running(supervisor, next_one)


async def test_an_impossible_request_is_refused_with_what_would_do(tmp_path: Path):
    rules = Rules(quotas={"small": Quota(most=ONE)})
    async with supervising(tmp_path, TWO, rules=rules) as supervisor:
        with pytest.raises(JobRefusedError, match=r"\.cpu_workers is 3, but all that there is is cpu_workers 2"):
            supervisor.submit(request("hold", need=Resources(cpu_workers=3)))
        with pytest.raises(JobRefusedError, match=r"the quota of tenant 'small' is cpu_workers 1"):
            supervisor.submit(request("hold", need=TWO, tenant="small"))
        assert supervisor.store.jobs() == []


async def test_a_job_that_no_longer_fits_never_blocks_the_queue(tmp_path: Path):
    async with supervising(tmp_path, TWO) as supervisor:
        blocker = supervisor.submit(request("hold", need=TWO))
        large, small = supervisor.submit(request("hold", need=TWO)), supervisor.submit(request("hold"))
        supervisor.cancel(blocker.id)
    async with supervising(tmp_path, ONE) as supervisor:  # a smaller machine
        gone = await supervisor.wait(large.id)
        assert (gone.state, gone.reason) == (JobState.FAILED, Reason.IMPOSSIBLE)
        await running(supervisor, small)


async def test_a_crash_is_retried_as_often_as_the_policy_says(tmp_path: Path):
    async with supervising(tmp_path, retry=RetryPolicy(retries=2, backoff=0.0)) as supervisor:
        recovers = supervisor.submit(request("crash", "fail", "0"))
        assert (await supervisor.wait(recovers.id)).state is JobState.SUCCEEDED
        assert [entry for entry in states(supervisor, recovers) if entry.startswith("queued")] == [
            "queued: submitted",
            "queued: crashed",
            "queued: error",
        ]
        never = await supervisor.wait(supervisor.submit(request("crash")).id)
        assert (never.state, never.reason, never.attempt) == (JobState.FAILED, Reason.CRASHED, 3)
        assert never.detail == "was killed by SIGKILL"
        hopeless = await supervisor.wait(supervisor.submit(request("give up")).id)
        assert (hopeless.reason, hopeless.detail, hopeless.attempt) == (Reason.ERROR, "it went wrong", 1)


async def test_a_job_that_rests_before_its_next_attempt_leaves_its_place_to_others(tmp_path: Path):
    async with supervising(tmp_path, retry=RetryPolicy(backoff=60.0)) as supervisor:
        rests, other = supervisor.submit(request("crash", "0")), supervisor.submit(request("0"))
        assert (await supervisor.wait(other.id)).state is JobState.SUCCEEDED
        assert supervisor.store.get(rests.id).state is JobState.QUEUED
        assert supervisor.cancel(rests.id).state is JobState.CANCELLED


async def test_cancelling_gives_grace_and_then_kills(tmp_path: Path):
    async with supervising(tmp_path, grace=0.1) as supervisor:
        deaf = supervisor.submit(request("deaf"))
        pid = await running(supervisor, deaf)
        assert supervisor.cancel(deaf.id).state is JobState.CANCELLING
        assert supervisor.cancel(deaf.id).state is JobState.CANCELLING
        ended = await supervisor.wait(deaf.id)
        assert (ended.state, ended.reason) == (JobState.CANCELLED, Reason.CANCEL_DONE)
        assert supervisor.cancel(deaf.id) == ended
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        queued = [supervisor.submit(request("hold")) for _ in range(2)][1]
        assert supervisor.cancel(queued.id).state is JobState.CANCELLED


async def test_a_failed_or_cancelled_job_can_be_resumed_and_a_successful_one_not(tmp_path: Path):
    async with supervising(tmp_path, retry=RetryPolicy(retries=0)) as supervisor:
        job = supervisor.submit(request("give up", "hold", "0"))
        await supervisor.wait(job.id)
        assert supervisor.resume(job.id).state is JobState.STARTING
        assert supervisor.resume(job.id).attempt == 2
        await running(supervisor, job)
        supervisor.cancel(job.id)
        await supervisor.wait(job.id)
        supervisor.resume(job.id)
        assert (await supervisor.wait(job.id)).state is JobState.SUCCEEDED
        with pytest.raises(JobStateError, match="is succeeded and can't become queued; it stays that"):
            supervisor.resume(job.id)


async def test_a_job_that_found_no_descriptors_left_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def none_left() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    async with supervising(tmp_path) as supervisor:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pipe", none_left)
            job = supervisor.submit(request("0"))
        assert (job.state, job.reason) == (JobState.FAILED, Reason.START_FAILED)
        supervisor.resume(job.id)
        assert (await supervisor.wait(job.id)).state is JobState.SUCCEEDED


async def test_a_process_that_can_not_be_watched_is_ended_and_its_job_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def remembered(*command: Any, **settings: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*command, **settings))
        return started[-1]

    async with supervising(tmp_path) as supervisor:
        before = os.listdir("/proc/self/fd")
        with monkeypatch.context() as patched:
            patched.setattr(os, "pidfd_open", none_left)
            patched.setattr(threading.Thread, "start", no_thread)
            patched.setattr(subprocess, "Popen", remembered)
            job = supervisor.submit(request("hold"))
        assert (job.state, job.reason) == (JobState.FAILED, Reason.START_FAILED)
        assert "no thread can be started to watch process" in job.detail
        assert [process.returncode for process in started] == [-signal.SIGKILL]
        assert len(os.listdir("/proc/self/fd")) == len(before)
        supervisor.resume(job.id)
        finish(await running(supervisor, job))
        assert (await supervisor.wait(job.id)).state is JobState.SUCCEEDED


async def test_a_job_of_higher_priority_is_made_room_for(tmp_path: Path):
    async with supervising(tmp_path, TWO) as supervisor:
        older, newer = supervisor.submit(request("hold")), supervisor.submit(request("hold"))
        await running(supervisor, older)
        await running(supervisor, newer)
        urgent = supervisor.submit(request("hold", priority=1))
        pid = await running(supervisor, urgent)
        assert supervisor.store.get(older.id).state is JobState.RUNNING
        assert states(supervisor, newer)[-1] == "queued: pre-empted"
        finish(pid)
        await supervisor.wait(urgent.id)
        await running(supervisor, newer)
        assert supervisor.store.get(newer.id).failures == 0
    assert [entry for entry in traced(tmp_path) if entry[1] == "saved"] == [(newer.id, "saved", 1)]


async def test_a_job_that_does_not_make_room_is_killed(tmp_path: Path):
    async with supervising(tmp_path, grace=0.05, save_grace=0.05) as supervisor:
        deaf = supervisor.submit(request("deaf"))
        await running(supervisor, deaf)
        urgent = supervisor.submit(request("0", priority=1))
        assert (await supervisor.wait(urgent.id)).state is JobState.SUCCEEDED
        assert "queued: pre-empted" in states(supervisor, deaf)


async def test_the_next_supervisor_goes_on_with_what_one_left(tmp_path: Path):
    async with supervising(tmp_path) as supervisor:
        job, queued = supervisor.submit(request("hold", "0")), supervisor.submit(request("0"))
        await running(supervisor, job)
        other = Supervisor(tmp_path, ONE, settings=SchedulerSettings(command=fake))
        with pytest.raises(JobError, match="is in use by another scheduler"):
            other.start()
        waiting = asyncio.create_task(supervisor.wait(job.id))
        await asyncio.sleep(0)  # the wait begins
    with pytest.raises(JobError, match=f"the scheduler stops before job {job.id} is over"):
        await waiting
    async with supervising(tmp_path) as supervisor:
        assert (await supervisor.wait(job.id)).state is JobState.SUCCEEDED
        assert (await supervisor.wait(queued.id)).state is JobState.SUCCEEDED
        assert "queued: interrupted" in states(supervisor, job)
        assert supervisor.store.get(job.id).failures == 0
    assert [entry for entry in traced(tmp_path) if entry[1] == "done"] == [(job.id, "done", 2), (queued.id, "done", 1)]


async def test_a_submission_that_is_repeated_with_its_key_is_the_same_job(tmp_path: Path):
    async with supervising(tmp_path) as supervisor:
        first = supervisor.submit(request("0", key="a"))
        assert supervisor.submit(request("0", key="a")).id == first.id
        assert supervisor.submit(request("0", key="a", tenant="other")).id != first.id
        assert len(supervisor.store.jobs()) == 2


async def test_jobs_get_devices_of_their_own(tmp_path: Path):
    device = Resources(devices=1)
    async with supervising(tmp_path, Resources(devices=2)) as supervisor:
        jobs = [supervisor.submit(request("hold", need=device)) for _ in range(3)]
        pids = await asyncio.gather(*(running(supervisor, job) for job in jobs[:2]))
        seen = [environment(pid)["CUDA_VISIBLE_DEVICES"] for pid in pids]
        assert seen == ["0", "1"]
        finish(pids[0])
        assert environment(await running(supervisor, jobs[2]))["CUDA_VISIBLE_DEVICES"] == "0"


def environment(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if entry)
