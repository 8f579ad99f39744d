"""The real command with real jobs, killed and started again: every job is there, and none runs twice."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.gateway.serving_process import Served, serve_process

CONFIG: dict[str, Any] = {
    "environment": {"name": "number_guess"},
    "rollouts": {"tasks_per_step": 2, "group_size": 4, "max_tokens": 2, "workers": 0},
    "trainer": {"steps": 10_000, "threads": 1},
    "policy": {"rank": 4},
    "evaluation": {"episodes": 4, "every": 0},
    "checkpoints": {"every": 1},
}
JOBS = "/jobs/v1/jobs"


async def running(http: httpx.AsyncClient, job: str, *, after: int) -> int:
    """Wait until a job has done a step beyond one; the last it did."""
    async with http.stream("GET", f"{JOBS}/{job}/metrics", params={"follow": True}, timeout=60) as rows:
        async for line in rows.aiter_lines():
            row = json.loads(line)
            if row["kind"] == "step" and row["step"] > after:
                return row["step"]
    raise AssertionError(f"{job} is over")


async def gone_on(http: httpx.AsyncClient, job: str) -> int:
    """Wait until a job has been taken up again; after which step."""
    async with http.stream("GET", f"{JOBS}/{job}/logs", params={"follow": True}, timeout=60) as lines:
        async for line in lines.aiter_lines():
            if "going on after step" in line:
                return int(line.split()[-1])
    raise AssertionError(f"{job} is over")


def processes(root: Path) -> list[psutil.Process]:
    """Task servers of the jobs below a folder."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "tinker_actors.console.task_process" in words and any(word.startswith(str(root)) for word in words):
            found.append(process)
    return found


async def states(http: httpx.AsyncClient, job: str) -> list[str]:
    lines = (await http.get(f"{JOBS}/{job}/transitions")).json()["transitions"]
    return [f"{line['attempt']} {line['wanted']} {line['reason']}" for line in lines]


async def test_a_service_that_is_killed_finds_its_jobs_again_and_goes_on_with_them_once(tmp_path: Path):
    async with serve_process(tmp_path) as served, httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        job = (await http.post(JOBS, json={"config": CONFIG})).json()["id"]
        waiting = (await http.post(JOBS, json={"config": CONFIG | {"name": "later"}, "priority": -1})).json()["id"]
        await http.post(f"{JOBS}/{waiting}/cancel")
        before = await running(http, job, after=1)
        (first,) = processes(tmp_path)
        await served.end(signal.SIGKILL)
    async with serve_process(tmp_path) as served, httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        resumed = await gone_on(http, job)
        assert resumed >= before - 1  # a step's numbers are written before its state is
        await running(http, job, after=resumed)
        assert [process.pid for process in processes(tmp_path)] != [first.pid]
        assert len(processes(tmp_path)) == 1
        assert (await states(http, job))[-3:] == ["1 queued interrupted", "2 starting dispatched", "2 running started"]
        assert (await http.get(f"{JOBS}/{waiting}")).json()["state"] == "cancelled"
        steps = [json.loads(line)["step"] for line in await _steps(http, job)]
        assert steps == sorted(set(steps))  # nothing was done twice, and nothing left out
        await _ends_cleanly(served, http, job)
    assert processes(tmp_path) == []


async def _steps(http: httpx.AsyncClient, job: str) -> list[str]:
    rows = (await http.get(f"{JOBS}/{job}/metrics")).text.splitlines()
    return [row for row in rows if json.loads(row)["kind"] == "step"]


async def _ends_cleanly(served: Served, http: httpx.AsyncClient, job: str) -> None:
    """By Ctrl-C the present step is saved, though no checkpoint was due."""
    folder = (served.root / "serve" / "scheduler" / "jobs" / job / "run").resolve()
    assert await served.end(signal.SIGINT) == 0
    state = json.loads((folder / "state.json").read_text())
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert state["step"] == last["step"]


@pytest.mark.exhaustive  # another start of the service and of a job
async def test_a_second_signal_ends_it_at_once(tmp_path: Path):
    config = CONFIG | {"trainer": {"steps": 1, "threads": 1}, "rollouts": CONFIG["rollouts"] | {"tasks_per_step": 4000}}
    async with serve_process(tmp_path) as served, httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        job = (await http.post(JOBS, json={"config": config})).json()["id"]
        found = await http.get(f"{JOBS}/{job}/wait", params={"state": "running", "seconds": 60})
        assert found.json()["state"] == "running"
        served.process.send_signal(signal.SIGINT)
        while b"waiting for 1 running" not in await served.next_line():
            pass
        assert await served.end(signal.SIGINT) == 130
