"""`tinker-actors play`: a person's seat, who plays the others, how a game ends, and how one leaves."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from screen import Screen

from tinker_actors.cli import main
from tinker_actors.console.opponents import Who, best
from tinker_actors.environments.person import Lines
from tinker_actors.errors import ConfigError, UnknownPolicyError
from tinker_actors.policies import PolicySpec, SnapshotStore
from tinker_actors.sampling import Sampler
from tinker_actors.scheduler import RunFolder, parse_config
from tinker_actors.telemetry import JsonlWriter
from tinker_actors.training.engine import TrainingEngine

COUNT = """
from pathlib import Path
from tinker_actors import Environment, Step
from tinker_actors.data import Message
import numpy as np

class Count(Environment):
    '''Say numbers in turn; the one who says 3 wins.'''

    seats = ("first", "second")

    def __init__(self, log: str = "closed.txt", image: bool = False) -> None:
        self.log, self.image = log, image

    def reset(self, seed):
        self.said = 0
        return {"first": Message.of(np.full((4, 4), 255, np.uint8), "begin") if self.image else "begin"}

    def step(self, actions):
        ((seat, action),) = actions.items()
        other = "second" if seat == "first" else "first"
        if action.strip() != str(self.said + 1):
            return Step(reward={seat: -1.0, other: 1.0}, terminated=True)
        self.said += 1
        if self.said == 3:
            return Step(reward={seat: 1.0, other: -1.0}, terminated=True)
        return Step(observation={other: f"{seat} said {self.said}\\x1b[31m"})

    def demonstrate(self, seat):
        return str(self.said + 1)

    def close(self):
        with Path(self.log).open("a") as log:
            log.write("closed\\n")

def next_one(messages):
    return str(int(messages[-1].content.split()[-1][0]) + 1)
"""


@pytest.fixture(scope="module")
def count(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment's file."""
    file = tmp_path_factory.mktemp("environments") / "count.py"
    file.write_text(COUNT)
    return file


def play(
    file: Path | str, *arguments: str, typed: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Play with what is typed as the input's only lines."""
    return subprocess.run(
        [sys.executable, "-m", "tinker_actors.cli", "play", str(file), *arguments],
        input=typed,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        timeout=250,
    )


def test_a_person_wins_against_a_script_and_the_environment_is_closed_once(count, tmp_path):
    done = play(count, "--against", "script:next_one", "--seed", "5", typed="\n1\n3\n", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[0] == "count: Say numbers in turn; the one who says 3 wins."
    assert "the same games again: --seed 5" in lines
    assert "an answer is needed; Ctrl-D leaves" in lines
    assert "second said 2␛[31m" in lines
    assert lines[-2].split() == ["first", "you", "reward", "1", "won", "1", "|", "3"]
    assert lines[-1].split() == ["second", "script", "next_one", "reward", "-1", "lost", "2"]
    assert (tmp_path / "closed.txt").read_text() == "closed\n"


def test_the_environment_judges_what_a_person_says(count, tmp_path):
    done = play(count, "--seat", "second", typed="nonsense\n", cwd=tmp_path)
    assert done.returncode == 0
    assert "reward -1  lost  nonsense" in done.stdout


def test_an_environment_without_a_docstring_is_named_alone(tmp_path):
    bare = tmp_path / "bare.py"
    bare.write_text(COUNT.replace("    '''Say numbers in turn; the one who says 3 wins.'''\n", ""))
    assert play(bare, typed="1\n3\n", cwd=tmp_path).stdout.splitlines()[0].rstrip() == "bare"


def test_two_people_share_a_terminal_and_see_their_own_seats(count, tmp_path):
    done = play(count, "--against", "second=person", typed="1\n2\n3\n", cwd=tmp_path)
    assert [line for line in done.stdout.splitlines() if line.startswith(("first> ", "second> "))] == [
        "first> 1",
        "second> 2",
        "first> 3",
    ]


def test_the_end_of_input_leaves_with_130_and_closes_once(count, tmp_path):
    done = play(count, "--games", "3", typed="1\n", cwd=tmp_path)
    assert done.returncode == 130
    assert "You have left." in done.stdout
    assert (tmp_path / "closed.txt").read_text() == "closed\n"


def test_ctrl_c_leaves_with_130_and_closes_once(count, tmp_path):
    log = tmp_path / "closed.txt"
    screen = Screen("play", count, "--option", f"log={log}")
    screen.until("first> ")
    screen.press("\x03")
    assert screen.end() == 130
    assert log.read_text() == "closed\n"


def test_a_game_is_played_in_a_terminal_with_its_pictures(count, tmp_path):
    screen = Screen("play", count, "--option", f"log={tmp_path / 'closed.txt'}", "--option", "image=true")
    assert "▀" in screen.until("first> ")
    screen.press("1\n")
    screen.until("second said 2")
    screen.press("3\n")
    assert "won" in screen.until("lost")
    assert screen.end() == 0


def test_others_are_watched_and_games_are_counted(count, tmp_path):
    done = play(count, "--watch", "--against", "demonstration", "--games", "2", cwd=tmp_path)
    assert done.returncode == 0
    assert "first> 1\nfirst said 1␛[31m\nsecond> 2\n" in done.stdout
    assert "first: 2 won, 0 drawn, 0 lost" in done.stdout
    assert (tmp_path / "closed.txt").read_text() == "closed\n" * 2


@pytest.fixture(scope="module")
def run(count: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with two snapshots, the older of which evaluated better."""
    root = tmp_path_factory.mktemp("runs") / "count"
    config = parse_config(
        {
            "output": str(root),
            "model": {"name": "tiny-llama"},
            "environment": {"name": str(count), "options": {"log": str(root / "closed.txt")}},
            "rollouts": {"max_tokens": 3},
        },
        source="",
    )
    folder = RunFolder.create(config)
    engine = TrainingEngine("tiny-llama", folder.policies)
    engine.create(PolicySpec(base_model="tiny-llama", rank=2, name="policy"))
    handles = [engine.publish("policy").handle for _ in range(2)]
    gone = "tinker://policy/sampler_weights/000099"
    with JsonlWriter(folder.metrics) as metrics:
        for step, (handle, reward) in enumerate(zip([*handles, gone], (0.5, 0.25, 0.75), strict=True)):
            record = {"step": step, "kind": "evaluation", "reward": reward, "snapshots": {"policy": handle}}
            metrics.write(record)
    return root


@pytest.mark.parametrize("command", ["sample", "play"])
def test_a_run_that_goes_on_may_replace_its_snapshots_while_the_base_is_loaded(
    command, count, run, tmp_path, monkeypatch, capfd
):
    going_on = shutil.copytree(run, tmp_path / "run")
    loaded = Sampler.on_start

    async def loaded_meanwhile(sampler: Sampler) -> None:
        await loaded(sampler)
        store = SnapshotStore(going_on / "policies")
        old = store.list("policy")
        engine = TrainingEngine("tiny-llama", store.root)
        engine.create(PolicySpec(base_model="tiny-llama", rank=2, name="policy"))
        engine.publish("policy")
        for snapshot in old:
            store.delete(snapshot.handle)

    monkeypatch.setattr(Sampler, "on_start", loaded_meanwhile)
    players = ["--watch", "--against", f"first={going_on}", "--against", "second=demonstration"]
    words = ["sample", str(going_on), "--prompt", "x"] if command == "sample" else ["play", str(count), *players]
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main(words) == 0
    assert command == "sample" or "policy/3 of" in capfd.readouterr().out


@pytest.mark.parametrize("command", ["sample", "play"])
def test_a_base_model_that_takes_long_to_load_warns_of_nothing(command, count, run, monkeypatch, caplog):
    loaded = Sampler.on_start

    async def loaded_slowly(sampler: Sampler) -> None:
        await loaded(sampler)
        time.sleep(2.0)  # noqa: ASYNC251 - as reading a large model does; a mesh warns of 1 s by default

    monkeypatch.setattr(Sampler, "on_start", loaded_slowly)
    players = ["--watch", "--against", f"first={run}", "--against", "second=demonstration"]
    words = ["sample", str(run), "--prompt", "x"] if command == "sample" else ["play", str(count), *players]
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main(words) == 0
    assert "blocked" not in caplog.text


@pytest.mark.parametrize(("key", "code"), [("\x03", 130), ("\x04", 0)])
def test_a_conversation_ends_by_ctrl_c_and_ctrl_d_while_a_line_is_waited_for(key, code, run):
    screen = Screen("sample", run, "--max-tokens", "2")
    screen.until("> ")
    screen.press("hello\n")
    screen.until("\n> ")
    screen.press(key)
    assert screen.end() == code


def test_a_runs_policy_plays_by_its_newest_snapshot_with_the_runs_options(count, run, tmp_path):
    done = play(count, "--against", str(run), typed="1\n3\n3\n", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"second  policy/2 of {run}" in done.stdout
    assert f"options: log={run / 'closed.txt'}" in done.stdout
    assert not (tmp_path / "closed.txt").exists()


def test_a_base_model_plays(count, tmp_path):
    done = play(count, "--against", "tiny-llama", "--max-tokens", "2", typed="1\n3\n3\n", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "second  model tiny-llama" in done.stdout


def test_the_best_snapshot_is_the_best_that_is_kept(run):
    store = SnapshotStore(RunFolder(run).policies)
    snapshot, note = best(str(run), store)
    assert snapshot.number == 1
    assert note.startswith("evaluated at 0.500 after step 0; that of step 2, 0.750, is no longer kept")
    with pytest.raises(UnknownPolicyError, match="keeps no snapshot that was evaluated"):
        best(str(run), SnapshotStore(run / "elsewhere"))


def test_words_are_understood(run):
    assert Who.parse("script:a.b:c") == Who(kind="script", name="a.b:c")
    assert Who.parse(f"{run}@policy/1") == Who(kind="run", name=str(run), which="policy/1")
    assert Who.parse(str(RunFolder(run).policies)).kind == "store"
    assert Who.parse("tiny-llama:seed=3") == Who(kind="model", name="tiny-llama:seed=3")
    assert Who.parse("tinker://policy/sampler_weights/000001", str(run)).kind == "run"
    with pytest.raises(ConfigError, match="--store names its folder"):
        Who.parse("tinker://policy/sampler_weights/000001")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seat", "third"], "the environment's seats are first, second"),
        (["--against", "nobody"], "'nobody' can't play: it is no run folder"),
        (["--against", "third=script:next_one"], "'third=script:next_one'; the environment's seats are first, second"),
        (["--against", "first=person"], "that seat is yours"),
        (["--against", "demonstration", "--against", "person"], "SEAT=WHO says whom"),
        (["--against", "script:missing"], "scripted seat 'missing' is not found (the environment's file has next_one)"),
        (["--watch", "--against", "person"], "--watch is for games of others"),
        (["--games", "0"], "at least 1 is needed"),
        (["--option", "log"], "NAME=VALUE is needed"),
    ],
)
def test_what_cannot_work_is_refused(count, capsys, monkeypatch, arguments, message):
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert main(["play", str(count), *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


async def test_lines_come_from_a_pipe_in_pieces_and_a_wait_can_be_cancelled():
    reader, writer = os.pipe()
    lines = Lines(reader)
    waiting = asyncio.create_task(lines.next())
    os.write(writer, b"on")
    await asyncio.sleep(0)
    os.write(writer, "e\r\ntwö\nla".encode())
    assert [await waiting, await lines.next()] == ["one", "twö"]
    waiting = asyncio.create_task(lines.next())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    os.write(writer, b"st")
    os.close(writer)
    assert [await lines.next(), await lines.next()] == ["last", None]
    os.close(reader)


async def test_lines_come_from_a_file(tmp_path):
    file = tmp_path / "typed"
    file.write_text("one\ntwo")
    with file.open() as opened:
        lines = Lines(opened.fileno())
        assert [await lines.next() for _ in range(3)] == ["one", "two", None]
