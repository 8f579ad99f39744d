"""Evaluations are played by workers of their own where a run has some, with the same results."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.scheduler.silent_observer import Silent

from tinker_actors.scheduler import RunFolder, load_config, run_job

ENVIRONMENT = """
import os

from tinker_actors import Environment, Step


class Telling(Environment):
    def __init__(self, trace: str) -> None:
        self.trace = trace

    def reset(self, seed):
        with open(self.trace, "a") as file:
            file.write(f"{'eval' if self.evaluating else 'train'} {os.getpid()}\\n")
        return f"{seed % 7}="

    def step(self, action):
        return Step(reward=float(len(action) % 2), terminated=True)
"""


def telling(root: Path) -> str:
    """The file of the environment."""
    root.mkdir()
    (root / "telling.py").write_text(ENVIRONMENT)
    return str(root / "telling.py")


async def played(root: Path, workers: int, validators: int, *more: str) -> tuple[dict[str, set[int]], list[Any]]:
    """The processes that played training and evaluation episodes, and what evaluations found."""
    settings = [
        *("--environment.name", telling(root), "--environment.options.trace", str(root / "trace")),
        *("--rollouts.tasks-per-step", "2", "--rollouts.group-size", "2", "--rollouts.max-tokens", "2"),
        *("--rollouts.workers", str(workers), "--evaluation.workers", str(validators), "--trainer.threads", "1"),
        *("--trainer.steps", "2", "--evaluation.every", "1", "--evaluation.episodes", "4", "--policy.rank", "4"),
        *("--output", str(root / "run"), *more),
    ]
    config = load_config(None, settings)
    folder = RunFolder.create(config)
    await run_job(config, folder, Silent())
    found: dict[str, set[int]] = defaultdict(set)
    for line in (root / "trace").read_text().splitlines():
        phase, pid = line.split()
        found[phase].add(int(pid))
    rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    return found, [(row["step"], row["reward"]) for row in rows if row["kind"] == "evaluation"]


@pytest.mark.parametrize("isolation", ["inline", "process"])
async def test_evaluations_are_played_in_other_processes_and_come_to_the_same(tmp_path: Path, isolation: str):
    together, rewards = await played(tmp_path / "together", 1, 0, "--environment.isolation", isolation)
    apart, same = await played(tmp_path / "apart", 1, 1, "--environment.isolation", isolation)
    assert together["train"] == together["eval"]
    assert len(apart["train"]) == len(apart["eval"]) == 1
    assert apart["train"].isdisjoint(apart["eval"])
    assert rewards == same
