"""The command line as a user meets it: whole runs, errors, signals, dead workers, resuming."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tinker_actors.cli import main

SMALL = """
name = "small"
[model]
name = "tiny-llama"
[environment]
name = "number_guess"
[warmup]
method = "full"
steps = 3
episodes_per_step = 16
[rollouts]
tasks_per_step = 2
group_size = 8
max_tokens = 2
workers = 2
[trainer]
steps = 4
learning_rate = 5e-3
threads = 1
[evaluation]
every = 0
episodes = 8
[checkpoints]
every = 1
"""


class Process:
    """A `tinker-actors` process whose output can be waited for line by line."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tinker_actors.cli", *arguments],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )
        self.lines: list[str] = []
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait_for(self, text: str, timeout: float = 100.0) -> str:
        """The first line that holds `text`."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self._grown:
            self._grown.wait_for(lambda: found() or not self._reader.is_alive(), timeout)
        line = found()
        assert line is not None, f"{text!r} did not appear in:\n{self.output}"
        return line

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.popen.pid).children(recursive=True)

    def end(self, timeout: float = 100.0) -> int:
        """Wait for the process and return its exit code."""
        code = self.popen.wait(timeout)
        self._reader.join(timeout)
        return code

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._grown:
                self.lines.append(line)
                self._grown.notify_all()
        self.popen.stdout.close()
        with self._grown:
            self._grown.notify_all()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts `tinker-actors` in an empty folder; what still runs at the end is killed."""
    started: list[Process] = []

    def begin(*arguments: str) -> Process:
        started.append(Process(*arguments, cwd=tmp_path))
        return started[-1]

    yield begin
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
        process.end()


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


def steps_of(run: Path) -> list[int]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["step"] for record in records if record["kind"] == "step"]


def assert_gone(processes: list[psutil.Process], within: float = 60.0) -> None:
    _, alive = psutil.wait_procs(processes, timeout=within)
    assert not alive


def test_a_run_writes_everything_and_its_policy_answers(start: Callable[..., Process], config: str, tmp_path: Path):
    process = start("run", config, "--plain", "--output", "out")
    assert process.end() == 0, process.output
    run = tmp_path / "out"
    summary = json.loads((run / "summary.json").read_text())
    assert list(summary)[:6] == ["reward_first", "reward_last", "eval_before", "eval_after", "steps", "seconds"]
    assert list(summary)[6:] == ["more_before", "more_after"]  # what the environment reports
    assert set(summary["more_after"]) == {"env/invalid"}
    assert summary["steps"] == 4
    assert steps_of(run) == [1, 2, 3, 4]
    assert (run / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert 'name = "small"' in (run / "config.toml").read_text()
    transcripts = [json.loads(line) for line in (run / "rollouts.jsonl").read_text().splitlines()]
    assert {record["step"] for record in transcripts} == {1, 2, 3, 4}
    assert transcripts[0]["seats"][0]["turns"][0]["messages"][0]["content"] == "guess 1-7"
    (snapshot,) = (path for path in (run / "policies/policy/sampler_weights").iterdir() if path.name == "000005")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in snapshot.iterdir()}
    for text in ("An episode before training", "An episode after training", "Mean episode reward by step"):
        assert text in process.output
    reply = start("sample", "out", "--prompt", "guess 1-7", "--max-tokens", "2", "-n", "3", "--temperature", "1")
    assert reply.end() == 0, reply.output
    assert len(reply.lines) == 3


def test_ctrl_c_stops_in_time_leaves_no_process_and_resume_goes_on(
    start: Callable[..., Process], config: str, tmp_path: Path
):
    began = time.monotonic()
    process = start("run", config, "--plain", "--output", "out", "--trainer.steps", "1000")
    process.wait_for("step 3/1000")
    family = process.descendants()
    assert len(family) >= 2
    stopped = time.monotonic()
    process.popen.send_signal(signal.SIGINT)
    assert process.end() == 130, process.output
    assert time.monotonic() - stopped < max(5.0, stopped - began)  # where a start takes longer, so may an end
    assert_gone(family)
    assert "Traceback" not in process.output
    assert "go on with: tinker-actors run out --resume" in process.lines[-1]
    done = json.loads((tmp_path / "out/state.json").read_text())["step"]
    resumed = start("run", "out", "--resume", "--plain", "--trainer.steps", str(done + 2))
    assert resumed.end() == 0, resumed.output
    assert f"going on after step {done}" in resumed.output
    assert steps_of(tmp_path / "out") == list(range(1, done + 3))


def test_ctrl_c_while_a_command_still_loads_ends_it_at_once(start: Callable[..., Process], config: str, tmp_path: Path):
    process = start("run", config, "--plain", "--output", "out")
    loading = psutil.Process(process.popen.pid)
    while not any("libtorch" in each.path for each in loading.memory_maps()):
        assert process.popen.poll() is None, process.output
        time.sleep(0.01)
    process.popen.send_signal(signal.SIGINT)
    assert process.end() == 130, process.output
    assert "Traceback" not in process.output
    assert not (tmp_path / "out").exists()  # nothing that `--resume` would take for a run


def test_ctrl_c_before_the_command_line_has_been_imported_ends_it_without_a_traceback():
    program = """
import os, signal, sys
from tinker_actors.cli import main
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("tinker_actors.console"):
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
sys.exit(main(["environments"]))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_a_killed_rollout_worker_does_not_stop_the_run(start: Callable[..., Process], config: str, tmp_path: Path):
    process = start("run", config, "--plain", "--output", "out", "--trainer.steps", "30")
    process.wait_for("step 2/30")
    workers = [child for child in process.descendants() if "tinker_actors" in " ".join(child.cmdline())]
    assert len(workers) == 2
    workers[0].kill()
    assert process.end() == 0, process.output
    assert steps_of(tmp_path / "out") == list(range(1, 31))
    assert "was started again: node" in process.output
    assert "killed by SIGKILL" in (tmp_path / "out/run.log").read_text()


def test_a_run_killed_outright_leaves_no_process_and_resumes(
    start: Callable[..., Process], config: str, tmp_path: Path
):
    process = start("run", config, "--plain", "--output", "out", "--trainer.steps", "1000")
    process.wait_for("step 2/1000")
    family = process.descendants()
    process.popen.kill()
    process.end()
    assert_gone(family)
    done = json.loads((tmp_path / "out/state.json").read_text())["step"]
    resumed = start("run", "out", "--resume", "--plain", "--trainer.steps", str(done + 1))
    assert resumed.end() == 0, resumed.output
    assert steps_of(tmp_path / "out") == list(range(1, done + 2))


SLOW = """
import asyncio
from pathlib import Path

from tinker_actors import Environment, Step

LOG = Path(__file__).with_name("log")


class Slow(Environment):
    def reset(self, seed):
        self.note("open")
        return "go"

    async def step(self, action):
        await asyncio.sleep(3600)

    def close(self):
        self.note("close")

    def note(self, what):
        with LOG.open("a") as log:
            log.write(f"{what} {id(self)}\\n")
"""


@pytest.mark.parametrize(
    ("number", "code", "isolation"),
    [(signal.SIGTERM, 143, "inline"), (signal.SIGINT, 130, "inline"), (signal.SIGTERM, 143, "process")],
)
def test_a_signal_closes_every_environment_once_and_leaves_no_process(
    start: Callable[..., Process], tmp_path: Path, number: signal.Signals, code: int, isolation: str
):
    (tmp_path / "slow.py").write_text(SLOW)
    process = start(
        "run",
        "slow.py",
        "--plain",
        "--output",
        "out",
        "--evaluation.episodes",
        "6",
        "--environment.isolation",
        isolation,
    )
    log = tmp_path / "log"
    deadline = time.monotonic() + 100
    while not log.exists() or log.read_text().count("open") < 6:
        assert time.monotonic() < deadline, process.output
        time.sleep(0.02)
    family = process.descendants()
    process.popen.send_signal(number)
    assert process.end() == code, process.output
    assert_gone(family)
    lines = log.read_text().split("\n")[:-1]
    opened = sorted(line.split()[1] for line in lines if line.startswith("open"))
    closed = sorted(line.split()[1] for line in lines if line.startswith("close"))
    assert closed == opened


README = (Path(__file__).parents[2] / "README.md").read_text()


def from_readme(name: str) -> str:
    """The program that the README shows under a file name."""
    return README.partition(f"```python\n# {name}\n")[2].partition("```")[0]


OWN = from_readme("my_env.py")


def test_an_environment_in_a_file_of_its_own_runs_by_path(start: Callable[..., Process], tmp_path: Path):
    (tmp_path / "my_env.py").write_text(OWN)
    small = (
        "--trainer.steps",
        "2",
        "--warmup.steps",
        "2",
        "--evaluation.episodes",
        "4",
        "--rollouts.tasks-per-step",
        "2",
    )
    process = start("run", "my_env.py", "--plain", *small)
    assert process.end() == 0, process.output
    (run,) = (path for path in (tmp_path / "runs/my_env").iterdir() if not path.is_symlink())
    assert steps_of(run) == [1, 2]
    assert "learning_rate = 0.003\n" in (run / "config.toml").read_text().partition("[trainer]")[2]


def test_an_environment_that_raises_ends_the_run_with_the_cause(start: Callable[..., Process], tmp_path: Path):
    (tmp_path / "bad.py").write_text(OWN.replace("return Step(", "raise KeyError('grader') or Step("))
    process = start("run", "bad.py", "--plain", "--warmup.method", "none", "--evaluation.episodes", "4")
    assert process.end() == 2, process.output
    assert "all 4 evaluation episodes failed" in process.output
    assert "KeyError: 'grader'" in process.output


@pytest.mark.parametrize("workers", ["0", "1"])
def test_the_log_of_a_run_has_the_traceback_of_an_environment_that_raises_once(
    workers: str, start: Callable[..., Process], tmp_path: Path
):
    raising = OWN.replace("return Step(", "self.grade() or Step(")
    (tmp_path / "bad.py").write_text(f"{raising}\n    def grade(self):\n        raise KeyError('grader')\n")
    process = start(
        *("run", "bad.py", "--plain", "--output", "out", "--rollouts.workers", workers),
        *("--warmup.method", "none", "--evaluation.episodes", "4"),
    )
    assert process.end() == 2, process.output
    assert "out/run.log has the tracebacks" in process.lines[-1]
    log = (tmp_path / "out/run.log").read_text()
    assert log.count("Traceback (most recent call last):") == 1
    assert 'bad.py", line ' in log
    assert "in grade\n    raise KeyError('grader')\nKeyError: 'grader'\n" in log


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "{config}", "--trainer.learning-rat", "1"], "unknown key trainer.learning_rat"),
        (["run", "{config}", "--trainer.steps", "many"], "trainer.steps is 'many'"),
        (["run", "{config}", "--environment.name", "number_gues"], "number_guess"),
        (["run", "{config}", "--environment.options.hihg", "3"], "hihg"),
        (["run", "{config}", "--output", "{config}/below"], "can't be written"),
        (["run", "{config}", "--model.name", "tiny-lama", "--output", "{tmp}/new"], "tiny-llama"),
        (["run", "{config}", "--resum"], "argument '--resum' is not understood; did you mean --resume?"),
        (["run", "--plian", "{config}"], "argument '--plian' is not understood; did you mean --plain?"),
        (["run", "{tmp}/raises.py"], "raises.py can't be imported: line 1, RuntimeError: first second"),
        (["play", "{tmp}/raises.py"], "raises.py can't be imported: line 1, RuntimeError: first second"),
        (["run", ""], "TARGET is empty"),
        (["run", "{tmp}/absent.toml"], "no such file"),
        (["run", "{tmp}"], "is a folder"),
        (["run", "{tmp}", "--resume"], "is not a run folder"),
        (["run", "{tmp}/absent", "--resume"], "absent: no such run folder"),
        (
            [
                *("run", "{config}", "--kl.coefficient", "1", "--kl.reference", "tinker://policy/weights/a"),
                *("--kl.reference-store", "{tmp}", "--output", "{tmp}/new"),
            ],
            "kl.reference can't be used: tinker://policy/weights/a is not in the store",
        ),
        (["run", "--trainer.steps", "3", "{tmp}/absent.py"], "absent.py"),
        (["sample", "{tmp}", "--prompt", "x"], "is not a run folder"),
        (["sample", "{tmp}", "--image", "x.png"], "--image goes with --prompt"),
        (["sample", "{tmp}", "--image", "{tmp}/absent.png", "--prompt", "x"], "absent.png can't be read"),
        (["models", "fetch", "gpt-9"], "can't be fetched"),
        (["keys", "mesh", "{config}", "head"], "File exists"),
        (["ps", "--rows", "0"], "--rows is 0; at least 1 is needed"),
        (["jobs", "--url", "http://127.0.0.1:port"], "URL is 'http://127.0.0.1:port': Invalid port: 'port'"),
        (["top", "--count", "0"], "--count is 0; at least 1 is needed"),
        (["top", "--interval", "nan"], "--interval is nan; a positive number of seconds is needed"),
        (
            ["node", "--join", "tcp://127.0.0.1:1", "--import", "raises"],
            "can't be imported: RuntimeError: first second",
        ),
        (["node", "--join", "tcp://127.0.0.1:1", "--import", ""], "--import '' can't be imported: "),
    ],
)
def test_what_can_not_work_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    config: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "raises.py").write_text("raise RuntimeError('first\\n  second')")
    monkeypatch.syspath_prepend(tmp_path)
    code = main([argument.format(config=config, tmp=tmp_path) for argument in arguments])
    output, errors = capfd.readouterr()
    assert code == 2
    assert message in errors
    assert errors.count("\n") == 1
    assert "Traceback" not in output + errors


def test_a_key_that_no_header_holds_is_refused_unseen(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("TINKER_ACTORS_API_KEY", "tml-ünïque")
    assert main(["jobs", "--url", "http://127.0.0.1:1"]) == 2
    told = capfd.readouterr().err
    assert (
        told
        == "tinker-actors: $TINKER_ACTORS_API_KEY holds characters that no key has; as `keys add` shows it is right\n"
    )


def test_environments_and_models_are_listed(capfd: pytest.CaptureFixture[str]):
    assert main(["environments"]) == 0
    assert main(["models", "ls"]) == 0
    output = capfd.readouterr().out
    for name in ("arithmetic", "last_word", "number_guess", "tiny-llama", "smollm2-135m"):
        assert name in output


def test_the_program_in_the_readme_learns_its_pattern(tmp_path: Path):
    script = tmp_path / "trainer_and_sampler.py"
    script.write_text(from_readme(script.name))
    result = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "cabcab\n"


def test_importing_the_package_loads_neither_torch_nor_zmq():
    code = (
        "import sys, tinker_actors; print([name for name in ('torch', 'transformers', 'zmq') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_public_name_of_the_package_resolves():
    import tinker_actors

    for name in tinker_actors.__all__:
        assert getattr(tinker_actors, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = tinker_actors.Nonsense
