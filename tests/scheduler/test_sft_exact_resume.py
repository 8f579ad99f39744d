"""A supervised run that was killed, whenever it was, ends with the weights of the run that was not, bit for bit."""

from __future__ import annotations

import hashlib
import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.scheduler.forked_runs import ForkedRuns
from tests.scheduler.sft_material import settings

pytestmark = pytest.mark.timeout(600)  # many runs, one after the other

MORE = ("--trainer.epochs", "3", "--batch.accumulation", "2", "--data.holdout", "0.2")
LAST = 6  # 12 examples, 8 a step


@pytest.fixture(scope="module")
def runs() -> Iterator[ForkedRuns]:
    made = ForkedRuns()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return settings(tmp_path_factory.mktemp("data"), *MORE, train=15, held=0)


@pytest.fixture(scope="module")
def whole(runs: ForkedRuns, overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    root = tmp_path_factory.mktemp("whole") / "run"
    answer = runs.ask(root, overrides)
    assert answer["code"] == 0
    return root, answer


def weights(root: Path) -> str:
    """sha256 of the final training state: weights, and moments with the random numbers."""
    checkpoint = root / "policies" / "policy" / "weights" / f"step-{LAST:06d}"
    files = ("weights.safetensors", "training_state.safetensors")
    return hashlib.sha256(b"".join((checkpoint / name).read_bytes() for name in files)).hexdigest()


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def losses(root: Path) -> list[tuple[int, str, float]]:
    return [(entry["step"], entry["kind"], entry["loss"]) for entry in records(root / "metrics.jsonl")]


def assert_same(root: Path, whole: Path) -> None:
    assert weights(root) == weights(whole)
    assert losses(root) == losses(whole)
    assert records(root / "examples.jsonl") == records(whole / "examples.jsonl")
    best, expected = (json.loads((path / "state.json").read_text())["best"] for path in (root, whole))
    assert (best["step"], best["loss"]) == (expected["step"], expected["loss"])


def test_a_run_killed_at_random_points_ends_as_the_one_that_was_not(runs, overrides, whole, tmp_path):
    root, (expected, answer) = tmp_path / "run", whole
    draw = random.Random()
    points = [runs.kill_somewhere(root, overrides, answer, draw) for _ in range(3)]
    assert runs.ask(root, overrides)["code"] == 0, points
    assert_same(root, expected)


@pytest.mark.parametrize("sabotage", ["die_amid_the_checkpoint", "fill_the_disk"])
def test_a_save_that_fails_leaves_the_last_good_one(runs, overrides, whole, tmp_path, sabotage):
    root = tmp_path / "run"
    code = runs.ask(root, overrides, sabotage=sabotage)["code"]
    assert code == (1 if sabotage == "fill_the_disk" else -signal.SIGKILL)
    assert json.loads((root / "state.json").read_text())["step"] == 0
    assert runs.ask(root, overrides)["code"] == 0
    assert_same(root, whole[0])


def test_each_example_is_trained_exactly_once_an_epoch_over_a_crash(runs, overrides, tmp_path):  # R4
    root = tmp_path / "run"
    assert runs.ask(root, overrides, sabotage="die")["code"] == -signal.SIGKILL
    assert runs.ask(root, overrides)["code"] == 0
    for epoch in (1, 2, 3):
        entries = [entry for entry in records(root / "examples.jsonl") if entry["epoch"] == epoch]
        names = [name for entry in entries for name in entry["examples"]]
        assert len(names) == len(set(names)) == 12
