"""A job that holds more memory than it asked for fails, says by how much, and harms no other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.scheduler.job_material import request

from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.job_records import Job
from tinker_actors.scheduler.memory_watch import memory_of
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.states import JobState, Reason
from tinker_actors.scheduler.supervisor import Supervisor

MIB = 2**20
ROOM = Resources(memory=1000 * MIB, cpu_workers=2)

GROWING = """
import os, subprocess, sys, time
os.write(int(sys.argv[4]), b"1")
if sys.argv[1] == "0":
    sys.exit(time.sleep(600))
code = "import time; held = bytearray(%d << 20); held[::4096] = bytes([1]) * len(held[::4096]); time.sleep(600)"
children = [subprocess.Popen([sys.executable, "-I", "-S", "-c", code % int(sys.argv[1])]) for _ in range(2)]
time.sleep(600)
"""


def growing(job: Job, folder: JobFolder) -> Sequence[str]:
    """A job of three processes, two of which hold so many MiB."""
    return [sys.executable, "-I", "-S", "-c", GROWING, job.config["do"][0], str(folder.root), str(job.attempt)]


async def test_a_job_whose_processes_hold_too_much_together_fails_and_is_not_tried_again(tmp_path: Path):
    supervisor = Supervisor(tmp_path, ROOM, settings=SchedulerSettings(command=growing))
    supervisor.start()
    try:
        need = Resources(memory=100 * MIB, cpu_workers=1)
        good = supervisor.submit(request("0", need=need))
        bad = supervisor.submit(request("80", need=need))  # neither process does alone
        ended = await supervisor.wait(bad.id)
        assert (ended.state, ended.reason, ended.attempt) == (JobState.FAILED, Reason.MEMORY, 1)
        held = int(ended.detail.split()[3])
        assert 100 < held < 250
        assert "resources.memory is 100 MiB" in ended.detail
        assert supervisor.ledger.free == ROOM.less(need)
        assert supervisor.store.get(good.id).state is not JobState.FAILED
    finally:
        await supervisor.stop()


async def test_what_is_a_little_over_the_bound_is_told_as_more_than_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tinker_actors.scheduler.memory_watch.memory_of", lambda pid: 100 * MIB + 1)
    supervisor = Supervisor(tmp_path, ROOM, settings=SchedulerSettings(command=growing))
    supervisor.start()
    try:
        job = supervisor.submit(request("0", need=Resources(memory=100 * MIB, cpu_workers=1)))
        assert (await supervisor.wait(job.id)).detail.startswith("its processes held 101 MiB of memory")
    finally:
        await supervisor.stop()


HOLDING = """
import sys
print("small", flush=True)
sys.stdin.readline()
held = bytearray(64 << 20)
held[::4096] = bytes([1]) * len(held[::4096])
print("large", flush=True)
sys.stdin.readline()
"""


def test_what_is_measured_is_what_is_held():
    # a process of its own that shares next to nothing: others that load the libraries of this one change its share
    command = [sys.executable, "-I", "-S", "-c", HOLDING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "small\n"
        before = memory_of(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "large\n"
        assert memory_of(process.pid) - before == pytest.approx(64 * MIB, rel=0.2)
        process.stdin.close()
    assert memory_of(2**22) == 0
