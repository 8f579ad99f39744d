"""A run that is asked to stop saves the step that it is in, and goes on from there as if nothing had been."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.scheduler.sft_material import config as sft_config

from tinker_actors.scheduler import JobConfig, RunFolder, load_config, run_job
from tinker_actors.scheduler.stopping import StopRequest

STOPPED_AT = 3
RL = [
    *("--environment.name", "number_guess", "--rollouts.tasks-per-step", "2", "--rollouts.group-size", "4"),
    *("--rollouts.max-tokens", "2", "--rollouts.workers", "0", "--rollouts.submit-ahead", "1"),
    *("--trainer.steps", "5", "--trainer.threads", "1", "--policy.rank", "4", "--evaluation.episodes", "4"),
    *("--evaluation.every", "0", "--checkpoints.every", "100"),
]


class Asking:
    """An observer that asks the run to stop in a step."""

    def __init__(self, stop: StopRequest | None) -> None:
        self._stop = stop

    def step(self, step: int, metrics: object) -> None:
        if self._stop is not None and step == STOPPED_AT:
            self._stop.ask()

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def made(kind: str, root: Path, output: str) -> JobConfig:
    if kind == "sft":
        overrides = ("--checkpoints.every", "100", "--evaluation.every", "0", "--output", str(root / output))
        return sft_config(root, *overrides, "--trainer.epochs", "2")
    return load_config(None, [*RL, "--output", str(root / output)])


def curve(folder: RunFolder) -> list[tuple[int, float]]:
    records = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    return [(entry["step"], entry["grad_norm"]) for entry in records if entry["kind"] == "step"]


@pytest.mark.parametrize("kind", ["sft", "rl"])
async def test_a_run_that_is_asked_to_stop_goes_on_where_it_was(tmp_path: Path, kind: str):
    whole = RunFolder.create(made(kind, tmp_path, "whole"))
    await run_job(made(kind, tmp_path, "whole"), whole, Asking(None))
    config = made(kind, tmp_path, "parts")
    parts, stop = RunFolder.create(config), StopRequest()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(run_job(config, parts, Asking(stop), stop))
    assert stop.heeded
    assert json.loads(parts.state.read_text())["step"] == STOPPED_AT
    await run_job(config, parts, Asking(None))
    assert curve(parts) == curve(whole)
    assert curve(parts)[-1][0] > STOPPED_AT
