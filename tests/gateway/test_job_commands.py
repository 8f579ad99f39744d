"""`submit`, `jobs`, `uploads`, `logs`, `metrics`, `cancel` and `resume` against a gateway on a real port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.job_gateways import Desk, desk

from tinker_actors.cli import main
from tinker_actors.gateway.gateway import create_app
from tinker_actors.gateway.listening import listening, serving


class Commands:
    """Runs commands beside the gateway that they ask."""

    def __init__(self, at: Desk, capsys: pytest.CaptureFixture[str]) -> None:
        self.at, self._capsys = at, capsys

    async def __call__(self, *words: str) -> tuple[int, str, str]:
        """The exit code, and what was printed."""
        code = await asyncio.to_thread(main, words)
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err


@asynccontextmanager
async def commands(tmp_path: Path, capsys: Any, monkeypatch: Any, **settings: Any) -> AsyncIterator[Commands]:
    async with desk(tmp_path / "root", **settings) as at:
        with listening("127.0.0.1", 0) as listener:
            async with serving(create_app(at.gateway), listener) as url:
                monkeypatch.setenv("TINKER_ACTORS_URL", url)
                monkeypatch.delenv("TINKER_ACTORS_API_KEY", raising=False)
                yield Commands(at, capsys)


def config_file(tmp_path: Path, text: str = '[environment]\nname = "number_guess"\n[rollouts]\nworkers = 0\n') -> str:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return str(path)


async def test_a_configuration_is_submitted_with_options_over_it_and_followed_to_its_end(
    tmp_path: Path, capsys: Any, monkeypatch: Any
):
    async with commands(tmp_path, capsys, monkeypatch) as run:
        words = (
            "submit",
            config_file(tmp_path),
            "--trainer.steps",
            "7",
            "--priority=2",
            "--once",
            "k",
            "--name",
            "mine",
        )
        job = json.loads((await run(*words, "--json"))[1])
        assert (job["name"], job["priority"], job["config"]["trainer"]["steps"]) == ("mine", 2, 7)
        following = asyncio.create_task(run(*words, "--follow"))
        await run.at.running(job["id"])
        run.at.finish(job["id"])
        code, out, err = await following
        assert (code, out) == (0, f"{job['id']}\nattempt 1 begins\nand ends\n")
        assert f"{job['id']} is succeeded (finished)" in err
        assert (await run("logs", job["id"], "--tail", "9"))[1] == "and ends\n"
        assert (await run("metrics", job["id"], "--json"))[1].splitlines()[0] == '{"step": 0, "kind": "evaluation"}'
        listed = await run("jobs", "--json", "--state", "succeeded")
        assert [entry["id"] for entry in json.loads(listed[1])] == [job["id"]]
        table = (await run("jobs"))[1]
        assert f"{job['id']}  mine  rl-lora  succeeded  finished" in table
        told = (await run("jobs", job["id"]))[1]
        assert "try 1  running (started)" in told


async def test_a_job_is_cancelled_and_resumed_and_a_follower_that_sees_it_fail_says_so(
    tmp_path: Path, capsys: Any, monkeypatch: Any
):
    async with commands(tmp_path, capsys, monkeypatch) as run:
        job = (await run("submit", config_file(tmp_path), "--once", "k"))[1].strip()
        assert (await run("submit", config_file(tmp_path), "--once", "k"))[1].strip() == job
        await run.at.running(job)
        following = asyncio.create_task(run("submit", config_file(tmp_path), "--once", "k", "--follow"))
        assert (await run.at.http.post(f"/jobs/v1/jobs/{job}/cancel")).json()["state"] == "cancelling"
        code, _, err = await following
        assert code == 1
        assert "is cancelled (cancel done)" in err
        assert "is starting" in (await run("resume", job))[1]
        await run.at.running(job)
        assert "is cancelling" in (await run("cancel", job))[1]


async def test_jobs_and_uploads_are_deleted_each_that_can_be(tmp_path: Path, capsys: Any, monkeypatch: Any):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    text = f'job = "sft"\n[data]\ntrain = "{tmp_path}/rows.jsonl"\n'
    async with commands(tmp_path, capsys, monkeypatch) as run:
        assert (await run("uploads"))[1] == "there are no uploads\n"
        job = json.loads((await run("submit", config_file(tmp_path, text), "--json"))[1])
        upload = job["config"]["data"]["train"][0]
        await run.at.running(job["id"])
        assert [word in (await run("uploads"))[1] for word in (upload, "35 bytes", job["id"])] == [True] * 3
        other = (await run("submit", config_file(tmp_path)))[1].strip()
        await run("cancel", other)
        await run.at.over(other)
        code, out, err = await run("jobs", "rm", job["id"], other, "job-0")
        assert (code, out) == (2, f"{other} is deleted\n")
        assert err.count("\n") == 2
        assert "only one that is over can be deleted: cancel it first" in err
        code, _, err = await run("uploads", "rm", upload)
        assert (code, f"{upload} is used by {job['id']}" in err) == (2, True)
        await run("cancel", job["id"])
        await run.at.over(job["id"])
        assert await run("jobs", "rm", job["id"], "--checkpoints", "--json") == (0, f'["{job["id"]}"]\n', "")
        assert await run("uploads", "rm", upload) == (0, f"{upload} is deleted\n", "")
        assert (await run("jobs"))[1] == "there are no jobs yet\n"
        for words in ("jobs rm", "uploads rm", "uploads x", "jobs a b", "jobs --checkpoints"):
            code, _, err = await run(*words.split())
            assert (code, "needed" in err) == (2, True)


async def test_files_of_data_are_uploaded(tmp_path: Path, capsys: Any, monkeypatch: Any):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    text = f'job = "sft"\n[data]\ntrain = ["{tmp_path}/rows.jsonl"]\n'
    async with commands(tmp_path, capsys, monkeypatch) as run:
        code, out, _ = await run("submit", config_file(tmp_path, text), "--json")
        assert code == 0
        assert json.loads(out)["config"]["data"]["train"][0].startswith("upload:")


async def test_what_cannot_work_is_one_line_and_exit_code_2(tmp_path: Path, capsys: Any, monkeypatch: Any):
    async with commands(tmp_path, capsys, monkeypatch) as run:
        for words, named in (
            (("logs", "job-0"), "job 'job-0' is not known"),
            (("cancel", "job-0"), "job 'job-0' is not known"),
            (("submit", "no.toml"), "no.toml: no such file"),
            (("submit", config_file(tmp_path), "--tainer.steps", "3"), "unknown key tainer; did you mean trainer?"),
            (("submit", "mine.py"), "mine.py is no configuration; a .toml file is needed"),
            (("submit", config_file(tmp_path), "--devices", "3"), "devices is 3"),
            (("submit", config_file(tmp_path), "--memory", "much"), "--memory is 'much'"),
            (("jobs", "--state", "over"), "--state is 'over'; one of queued, starting, running"),
            (("jobs", "--kind", "rl"), "--kind is 'rl'; one of rl-lora, rl-full, sft"),
            (("jobs", "--rows", "501"), "--rows is 501; from 1 to 500 is needed"),
            (("logs", "job-0", "--tail", "-5"), "--tail is -5; at least 0 is needed"),
            (("jobs", "--url", "http://127.0.0.1:1"), "nothing answers at http://127.0.0.1:1"),
            (("jobs", "--url", "here"), "http://HOST:PORT is needed"),
        ):
            code, _, err = await run(*words)
            assert code == 2
            assert named in err
            assert err.count("\n") == 1


async def test_a_server_that_ends_does_not_wait_for_those_who_follow(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr("tinker_actors.gateway.listening._ENDING", 600)
    async with desk(tmp_path / "root") as at, httpx.AsyncClient(timeout=60) as http:
        job = (await at.submit())["id"]
        await at.running(job)
        with listening("127.0.0.1", 0) as listener:
            async with asyncio.timeout(60), AsyncExitStack() as reading:
                async with serving(create_app(at.gateway), listener) as url:
                    asked = http.stream("GET", f"{url}/jobs/v1/jobs/{job}/logs", params={"follow": True})
                    chunks = (await reading.enter_async_context(asked)).aiter_raw()
                    assert await anext(chunks) == b"attempt 1 begins\n"
                with pytest.raises(httpx.RemoteProtocolError):  # the reader sees that this is not the end
                    await anext(chunks)


async def test_a_follower_goes_on_when_the_gateway_is_started_anew(tmp_path: Path, capsys: Any, monkeypatch: Any):
    async with desk(tmp_path / "root") as at:
        monkeypatch.delenv("TINKER_ACTORS_API_KEY", raising=False)
        job = (await at.submit())["id"]
        await at.running(job)
        run = Commands(at, capsys)
        with listening("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
            async with serving(create_app(at.gateway), listener) as url:
                monkeypatch.setenv("TINKER_ACTORS_URL", url)
                following = asyncio.create_task(run("logs", job, "--follow"))
                before = ""
                async with asyncio.timeout(60):
                    while "begins" not in before:
                        before += capsys.readouterr().out
                        await asyncio.sleep(0.01)
        at.finish(job)
        await at.over(job)
        with listening("127.0.0.1", port) as listener:
            async with serving(create_app(at.gateway), listener):
                code, out, _ = await following
        assert (code, before + out) == (0, "attempt 1 begins\nand ends\n")
