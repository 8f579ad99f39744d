"""Jobs whose task servers are tiny programs, and a supervisor of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.job_records import Job, JobRequest
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.states import JobKind, JobState
from tinker_actors.scheduler.supervisor import Supervisor
from tinker_actors.scheduler.verdict import RetryPolicy

FAKE = str(Path(__file__).with_name("fake_task_server.py"))
ONE = Resources(cpu_workers=1)


def fake(job: Job, folder: JobFolder) -> Sequence[str]:
    """A task server that starts at once; one that doesn't exist where the job says so."""
    if job.config["do"] == ["absent"]:
        return ["/no/such/program", str(folder.root), str(job.attempt)]
    return [sys.executable, "-I", "-S", FAKE, str(folder.root), str(job.attempt)]


def request(*do: str, need: Resources = ONE, **more: Any) -> JobRequest:
    """A job whose attempts do this, the last one again and again."""
    return JobRequest(kind=JobKind.SFT, name="fake", config={"do": list(do)}, directory="/", need=need, **more)


@asynccontextmanager
async def supervising(root: Path, capacity: Resources = ONE, **settings: Any) -> AsyncIterator[Supervisor]:
    """A supervisor from its start to its stop."""
    settings.setdefault("retry", RetryPolicy(backoff=0.0))
    told = {name: settings.pop(name) for name in ("on_failure", "on_change") if name in settings}
    supervisor = Supervisor(root, capacity, settings=SchedulerSettings(command=fake, **settings), **told)
    supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop()


async def running(supervisor: Supervisor, job: Job) -> int:
    """Wait until a job runs; its process's id."""
    present = await supervisor.wait(job.id, [JobState.RUNNING])
    assert present.state is JobState.RUNNING, present
    return supervisor.processes[job.id]


def finish(pid: int) -> None:
    """Let a fake task server that holds come to its end."""
    os.kill(pid, signal.SIGUSR1)


def states(supervisor: Supervisor, job: Job) -> list[str]:
    """The states that a job went through, with their reasons."""
    return [f"{line.wanted.value}: {line.reason.value}" for line in supervisor.store.transitions(job.id)]


def traced(root: Path) -> list[tuple[str, str, int]]:
    """What fake task servers did: job, what, attempt."""
    path = root / "trace"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(job, what, int(attempt)) for job, what, attempt in (line.rsplit(" ", 2) for line in lines)]
