"""A run of several policies and a league that was interrupted ends as the one that was not, bit for bit."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.scheduler.forked_runs import ForkedRuns

GAME = f"{Path(__file__).with_name('letters_game.py')}"
SMALL = [
    *("--environment.name", GAME, "--policy.rank", "4", "--rollouts.tasks-per-step", "4", "--rollouts.group-size", "4"),
    *("--rollouts.max-tokens", "2", "--rollouts.workers", "0", "--rollouts.transcripts-per-step", "99"),
    *("--trainer.steps", "6", "--trainer.learning-rate", "5e-3", "--trainer.threads", "1"),
    *("--evaluation.episodes", "4", "--evaluation.every", "0", "--checkpoints.every", "2"),
    *("--checkpoints.keep-snapshots", "1", "--rollouts.submit-ahead", "1"),
]
GAMES = {
    "two policies": [
        *("--policies.x.rank", "4", "--policies.o.learning-rate", "2e-3", "--algorithm.name", "role_baseline"),
        *("--kl.coefficient", "0.05"),
    ],
    "league": [
        *("--seats.o.player", "league", "--seats.o.rule", "win_rate", "--seats.o.every", "1", "--seats.o.size", "3"),
        *("--seats.o.self-share", "0.25", "--rollouts.rotate-seats", "true"),
    ],
}
pytestmark = pytest.mark.timeout(600)  # several runs, one after the other


@pytest.fixture(scope="module")
def runs() -> Iterator[ForkedRuns]:
    made = ForkedRuns()
    yield made
    made.stop()


def ended(root: Path) -> tuple[dict[str, str], list[Any], list[Any]]:
    """sha256 of each policy's final training state, the pools but for the handles' numbers, and who met whom."""
    weights = {
        str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(root.glob("policies/*/weights/step-000006/*.safetensors"))
    }
    state = json.loads((root / "state.json").read_text())
    pools = [
        [(member["games"], member["points"]) for pool in version["pools"].values() for member in pool["members"]]
        for version in state["versions"]
    ]
    episodes = [json.loads(line) for line in (root / "rollouts.jsonl").read_text().splitlines()]
    played = [
        (episode["id"], [(seat["trainable"], seat["turns"][0]["snapshot_step"]) for seat in episode["seats"]])
        for episode in episodes
    ]
    return weights, pools, sorted(played)


@pytest.mark.parametrize("name", GAMES)
def test_a_run_killed_at_random_points_ends_as_the_one_that_was_not(runs: ForkedRuns, tmp_path: Path, name: str):
    overrides, whole, root = [*SMALL, *GAMES[name]], tmp_path / "whole", tmp_path / "killed"
    answer = runs.ask(whole, overrides)
    assert answer["code"] == 0
    draw = random.Random()
    killed = [runs.kill_somewhere(root, overrides, answer, draw) for _ in range(3)]
    assert runs.ask(root, overrides)["code"] == 0, killed
    found, wanted = ended(root), ended(whole)
    assert found == wanted, killed
    assert len(wanted[0]) == (4 if name == "two policies" else 2)
    if name == "league":
        steps = {step for _, seats in wanted[2] for trainable, step in seats if not trainable}
        assert len(steps) > 2  # opponents of several ages were met
