"""Harnesses that are commands: they find their endpoint in their environment, and nothing of them is left behind."""

import asyncio
import sys
import time
from pathlib import Path

import pytest
from endpoint_harness import Says, sampled, seated

from tinker_actors.data import EpisodeEnd
from tinker_actors.environments.outside import CommandHarness, load_harness
from tinker_actors.errors import ConfigError

ASK = """
import json, os, sys, urllib.request
told = json.load(sys.stdin)
body = {"model": os.environ["OPENAI_MODEL"], "messages": told["messages"]}
key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), key)) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"])
"""


def python(code, *arguments):
    return CommandHarness([sys.executable, "-c", code, *arguments])


async def test_a_command_plays_several_turns_of_one_datum():
    sampler = Says(["one", "two"])
    async with seated(python(ASK), sampler) as play:
        played = await play("a", "b")
    assert played.environment.heard == ["one", "two"], played.episode.error
    assert len(played.datums) == 1
    assert played.trained() == sampled(sampler.replies)


async def test_arguments_may_name_the_observation_and_the_endpoint():
    code = ASK.replace("print(", "print(sys.argv[1], sys.argv[2] == os.environ['OPENAI_BASE_URL'], ")
    async with seated(python(code, "<{text}>", "{base_url}"), Says(["x"])) as play:
        played = await play("say {model}")
    assert played.environment.heard == ["<say {model}> True x"]


async def test_a_command_that_dies_fails_the_episode_with_its_last_words():
    async with seated(python("import sys; sys.exit('no luck today')"), Says([])) as play:
        played = await play("say")
    assert played.episode.end is EpisodeEnd.FAILED
    assert "exit code 1: no luck today" in played.episode.error


async def test_a_command_that_is_not_there_fails_the_episode():
    async with seated(CommandHarness(["/no/such/program"]), Says([])) as play:
        played = await play("say")
    assert "'/no/such/program' can't be started" in played.episode.error


async def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path):
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        f"open({str(pids)!r} + '.new', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(pids)!r} + '.new', {str(pids)!r})\n"
        "time.sleep(100)\n"
    )
    async with seated(python(code), Says([])) as play:
        playing = asyncio.create_task(play("say"))
        assert await _within(5, pids.exists)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
    for pid in map(int, pids.read_text().split()):
        assert await _within(5, lambda pid=pid: _has_ended(pid))


def _has_ended(pid):
    """Whether a process has; one that nobody has waited for yet counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


async def _within(seconds, holds):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


async def test_a_command_that_writes_without_end_is_stopped():
    async with seated(python("while True: print('x' * 10000)"), Says([])) as play:
        played = await play("say")
    assert "wrote more than" in played.episode.error


def test_a_harness_that_is_not_there_is_refused_by_name(tmp_path):
    (tmp_path / "mine.py").write_text("def play(call): return ''\nnumber = 3\n")
    assert load_harness(f"{tmp_path}/mine.py:play")(None) == ""
    for path, said in (
        ("play", "package.module:function"),
        ("no.such:play", "no.such"),
        (f"{tmp_path}/absent.py:play", "there is no file"),
        (f"{tmp_path}/mine.py:number", "a function is needed"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_harness(path)
