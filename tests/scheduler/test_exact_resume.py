"""A run that was interrupted, however and whenever, ends with the weights of the run that was not, bit for bit."""

from __future__ import annotations

import hashlib
import json
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.scheduler.forked_runs import ForkedRuns

SMALL = [
    *("--environment.name", "number_guess", "--policy.rank", "4", "--warmup.method", "lora", "--warmup.steps", "2"),
    *("--warmup.episodes-per-step", "8", "--rollouts.tasks-per-step", "2", "--rollouts.group-size", "4"),
    *("--rollouts.max-tokens", "2", "--rollouts.workers", "0", "--rollouts.transcripts-per-step", "99"),
    *("--trainer.steps", "5", "--trainer.learning-rate", "5e-3", "--trainer.threads", "1"),
    *("--evaluation.episodes", "4", "--evaluation.every", "0", "--checkpoints.every", "2"),
]
pytestmark = pytest.mark.timeout(600)  # many runs, one after the other

AHEAD = pytest.mark.parametrize("ahead", [0, 1])


class Runs(ForkedRuns):
    """Runs small RL jobs in processes that may be killed."""

    def run(self, root: Path, ahead: int, *more: str, sabotage: str | None = None) -> dict[str, Any]:
        """Begin a run, or go on with the one in the folder."""
        return self.ask(root, [*settings(ahead), *more], sabotage=sabotage)


def settings(ahead: int) -> list[str]:
    return [*SMALL, "--rollouts.submit-ahead", str(ahead)]


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    made = Runs()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def uninterrupted(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, dict[str, Any]]]:
    """For each number of steps ahead the folder of a run that nothing interrupts, and what its process answered."""
    found: dict[int, tuple[Path, dict[str, Any]]] = {}
    for ahead in (0, 1):
        root = tmp_path_factory.mktemp("whole") / "run"
        answer = runs.run(root, ahead)
        assert answer["code"] == 0
        found[ahead] = root, answer
    return found


def weights(root: Path) -> str:
    """sha256 of the final training state: weights, and moments with the random numbers."""
    checkpoint = root / "policies" / "policy" / "weights" / "step-000005"
    files = ("weights.safetensors", "training_state.safetensors")
    return hashlib.sha256(b"".join((checkpoint / name).read_bytes() for name in files)).hexdigest()


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewards(root: Path) -> list[tuple[int, float, float]]:
    found = records(root / "metrics.jsonl")
    return [(entry["step"], entry["reward"], entry["staleness_max"]) for entry in found if entry["kind"] == "step"]


@AHEAD
def test_a_run_killed_at_random_points_ends_as_the_one_that_was_not(runs, uninterrupted, tmp_path, ahead):
    whole, answer = uninterrupted[ahead]
    draw = random.Random()
    root = tmp_path / "run"
    points = [runs.kill_somewhere(root, settings(ahead), answer, draw) for _ in range(3)]
    assert runs.run(root, ahead)["code"] == 0, points
    assert weights(root) == weights(whole), points
    assert rewards(root) == rewards(whole)


@pytest.mark.parametrize("sabotage", ["die_amid_the_checkpoint", "die_before_the_state", "fill_the_disk"])
def test_a_save_that_fails_leaves_the_last_good_one(runs, uninterrupted, tmp_path, sabotage):
    ahead, root = 1, tmp_path / "run"
    whole, _ = uninterrupted[ahead]
    assert runs.run(root, ahead, sabotage=sabotage)["code"] == (1 if sabotage == "fill_the_disk" else -signal.SIGKILL)
    assert json.loads((root / "state.json").read_text())["step"] == 0
    assert runs.run(root, ahead)["code"] == 0
    assert weights(root) == weights(whole)
    assert not [path for path in root.rglob(".*") if path.name.startswith((".draft-", ".gone-"))]


def test_each_task_is_trained_exactly_once_over_a_crash(runs, uninterrupted, tmp_path):  # R4
    root = tmp_path / "run"
    assert runs.run(root, 1, sabotage="die")["code"] == -signal.SIGKILL  # step 3 is in flight, and 4 follows it
    assert runs.run(root, 1)["code"] == 0
    played = records(root / "rollouts.jsonl")
    groups = Counter((entry["step"], entry["task"]) for entry in played)
    assert sorted(step for step, _ in groups) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert len({task for _, task in groups}) == 10
    assert set(groups.values()) == {4}
    assert Counter(entry["id"] for entry in played) == Counter(
        entry["id"] for entry in records(uninterrupted[1][0] / "rollouts.jsonl")
    )


def test_the_number_of_workers_changes_no_bit(runs, uninterrupted, tmp_path):  # C12
    root = tmp_path / "run"
    assert runs.run(root, 1, "--rollouts.workers", "2")["code"] == 0
    assert weights(root) == weights(uninterrupted[1][0])
