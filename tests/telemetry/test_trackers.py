"""Trackers: each by itself with its real package, several at once, and what becomes of a run when one fails."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.scheduler.sft_material import Recorder, config

from tinker_actors.errors import ConfigError
from tinker_actors.scheduler import RunFolder, check_job, run_job
from tinker_actors.scheduler.stopping import StopRequest
from tinker_actors.scheduler.tracking import TrackingSection
from tinker_actors.telemetry import JsonlTracker, TensorBoardTracker, Tracking


class Listener:
    """A tracker that remembers what it hears, and may fail or wait."""

    def __init__(self, *, fails_at: str = "", gate: threading.Event | None = None) -> None:
        self.heard: list[Any] = []
        self._fails_at, self._gate = fails_at, gate

    def _hear(self, what: str, *more: Any) -> None:
        if self._gate is not None:
            self._gate.wait(250)
        if what == self._fails_at:
            raise ConnectionError(f"no {what}")
        self.heard.append((what, *more))

    def start(self, config: Mapping[str, Any]) -> None:
        self._hear("start", config)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._hear("log", step, metrics)

    def finish(self, status: str) -> None:
        self._hear("finish", status)


class Counted(Listener):
    """A tracker of whose steps one can wait for each."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = threading.Semaphore(0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        super().log(step, metrics)
        self.counted.release()


def test_every_tracker_hears_everything_in_order_but_what_is_not_finite():
    listeners = {"a": Listener(), "b": Listener()}
    tracking = Tracking(listeners, {"seed": 3})
    for step in range(100):
        tracking.log(step, {"reward": step / 2, "kl": math.nan, "loss": math.inf})
    tracking.finish("succeeded")
    expected = [("start", {"seed": 3}), *(("log", step, {"reward": step / 2}) for step in range(100))]
    assert [listener.heard for listener in listeners.values()] == [[*expected, ("finish", "succeeded")]] * 2


@pytest.mark.parametrize("fails_at", ["start", "log", "finish"])
def test_a_tracker_that_fails_is_named_and_left_out_and_the_others_go_on(fails_at: str):
    notes: list[str] = []
    good, bad = Listener(), Listener(fails_at=fails_at)
    tracking = Tracking({"bad": bad, "good": good}, {}, note=notes.append)
    tracking.log(1, {"reward": 1.0})
    tracking.log(2, {"reward": 1.0})
    tracking.finish("failed")
    assert [what for what, *_ in good.heard] == ["start", "log", "log", "finish"]
    assert notes == [f"tracker bad failed and is left out from here on: ConnectionError: no {fails_at}"]


def test_a_tracker_that_failed_is_not_called_too_slow():
    notes: list[str] = []
    tracking = Tracking({"bad": Listener(fails_at="start")}, {}, note=notes.append)
    for step in range(5000):  # more than may wait
        tracking.log(step, {"reward": 1.0})
    tracking.finish("succeeded")
    assert notes == ["tracker bad failed and is left out from here on: ConnectionError: no start"]


def test_a_tracker_that_hangs_holds_up_neither_the_run_nor_its_end():
    notes: list[str] = []
    gate = threading.Event()
    slow, quick = Listener(gate=gate), Counted()
    tracking = Tracking({"slow": slow, "quick": quick}, {}, note=notes.append)
    for step in range(5000):  # more than may wait
        tracking.log(step, {"reward": 1.0})
        assert quick.counted.acquire(timeout=60)
    tracking.finish("succeeded", seconds=1.0)
    assert quick.heard[-1] == ("finish", "succeeded")
    assert notes == ["tracker slow hasn't taken everything after 1 s"]
    gate.set()


# ------------------------------------------------------------------------------------------------------- to files


def test_json_lines_have_the_configuration_every_step_and_the_end(tmp_path: Path):
    tracking = Tracking({"jsonl": JsonlTracker(tmp_path / "t.jsonl")}, {"seed": 3})
    tracking.log(1, {"reward": 0.5})
    tracking.finish("cancelled")
    written = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert written == [{"config": {"seed": 3}}, {"step": 1, "reward": 0.5}, {"status": "cancelled"}]


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_reads_what_was_logged_and_a_resumed_run_replaces_what_it_repeats(tmp_path: Path):
    for resumed_at, value in ((0, 0.25), (2, 0.75)):
        notes: list[str] = []
        tracker = TensorBoardTracker(tmp_path, resumed_at=resumed_at)
        tracking = Tracking({"tensorboard": tracker}, {"seed": 3}, note=notes.append)
        for step in range(resumed_at + 1, resumed_at + 4):
            tracking.log(step, {"policy/a/reward": value})
        tracking.finish("succeeded")
        assert notes == []
    found = scalars(tmp_path, "policy/a/reward")
    assert found == [(1, 0.25), (2, 0.25), (3, 0.75), (4, 0.75), (5, 0.75)]


# ------------------------------------------------------------------------------------------------------ in a run


async def test_a_run_tells_its_trackers_what_it_writes_itself(tmp_path: Path):
    tracking = ("--tracking.tensorboard", "true", "--tracking.jsonl", "true")
    made = config(tmp_path, *tracking)
    observer, folder = Recorder(), RunFolder.create(made)
    await run_job(made, folder, observer)
    lines = [json.loads(line) for line in (folder.root / "tracking.jsonl").read_text().splitlines()]
    assert lines[0]["config"]["job"] == "sft"
    assert lines[-1] == {"status": "succeeded"}
    steps = {line["step"]: line["loss"] for line in lines if "loss" in line}
    assert steps == {step: metrics["loss"] for step, metrics in observer.steps.items()}
    evaluations = [(line["step"], line["evaluation/loss"]) for line in lines if "evaluation/loss" in line]
    assert evaluations == observer.evaluations
    shown = scalars(folder.root / "tensorboard", "loss")
    assert shown == [(step, pytest.approx(loss, rel=1e-6)) for step, loss in steps.items()]


async def test_a_run_whose_tracker_fails_is_none_the_worse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bad, good = Listener(fails_at="log"), Listener()
    monkeypatch.setattr(TrackingSection, "trackers", lambda *_, **__: {"bad": bad, "good": good})
    made = config(tmp_path, "--tracking.jsonl", "true")
    observer = Recorder()
    summary = await run_job(made, RunFolder.create(made), observer)
    assert summary.steps == 4
    await asyncio.sleep(0)  # notes come from the trackers' threads
    assert [note for note in observer.notes if "tracker" in note] == [
        "tracker bad failed and is left out from here on: ConnectionError: no log"
    ]
    assert good.heard[-1] == ("finish", "succeeded")


async def test_a_stopped_run_is_told_as_cancelled_and_goes_on_under_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = config(tmp_path, "--tracking.wandb.mode", "offline")
    folder, stop, listener = RunFolder.create(made), StopRequest(), Listener()
    monkeypatch.setattr(TrackingSection, "trackers", lambda *_, **__: {"listener": listener})
    stop.ask()
    with pytest.raises(asyncio.CancelledError):
        await run_job(made, folder, Recorder(), stop)
    assert listener.heard[-1] == ("finish", "cancelled")
    monkeypatch.undo()
    first, second = (made.tracking.trackers(folder.root, made.name, resumed_at=step) for step in (0, 2))
    assert first["wandb"]._arguments == second["wandb"]._arguments  # pyright: ignore[reportAttributeAccessIssue]


def test_a_tracker_whose_package_is_missing_is_refused_before_the_run_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for name in ("tensorboard", "wandb", "trackio"):
        value = "true" if name == "tensorboard" else "{}"
        with pytest.raises(ConfigError, match=rf"tracking.{name} needs .* 'tinker-actors\[{name}\]'"):
            check_job(config(tmp_path, f"--tracking.{name}", value))


def test_wrong_keys_of_tracking_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"tracking.wandb.mode is 'later'"):
        config(tmp_path, "--tracking.wandb.mode", "later")
    with pytest.raises(ConfigError, match=r"tracking.mlflow"):
        config(tmp_path, "--tracking.mlflow", "true")
