"""Runs with other advantage estimators than the default one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.scheduler.silent_observer import Silent

from tinker_actors.scheduler import RunFolder, load_config, run_job

SMALL = [
    *("--warmup.method", "none", "--policy.rank", "4", "--rollouts.tasks-per-step", "4", "--rollouts.max-tokens", "2"),
    *("--rollouts.workers", "0", "--trainer.steps", "2", "--trainer.threads", "1", "--trainer.learning-rate", "1e-3"),
    *("--evaluation.episodes", "4", "--evaluation.every", "0", "--checkpoints.every", "1"),
]


@pytest.fixture
def chance(tmp_path: Path) -> tuple[str, ...]:
    """An environment of two turns with a reward by chance after each."""
    (tmp_path / "chance.py").write_text(
        "from tinker_actors import Environment, Step\n"
        "class Chance(Environment):\n"
        "    def reset(self, seed):\n"
        "        self.turns = 0\n"
        "        return 'go'\n"
        "    def step(self, action):\n"
        "        self.turns += 1\n"
        "        return Step(observation='on', reward=self.rng.random(), terminated=self.turns == 2)\n"
    )
    return (*SMALL, "--environment.name", str(tmp_path / "chance.py"))


async def play(root: Path, *overrides: str, again: bool = False) -> list[dict[str, float]]:
    if again:
        folder = RunFolder(root)
        config = folder.load_config(overrides)
    else:
        config = load_config(None, [*overrides, "--output", str(root)])
        folder = RunFolder.create(config)
    steps = Silent()
    await run_job(config, folder, steps)  # pyright: ignore[reportArgumentType]
    return steps.steps


def weights(root: Path, step: int) -> str:
    return hashlib.sha256(
        (root / "policies" / "policy" / "weights" / f"step-{step:06d}" / "weights.safetensors").read_bytes()
    ).hexdigest()


@pytest.mark.parametrize(
    "settings",
    [
        ("reinforce_pp", "--rollouts.group-size", "1"),
        ("turn_returns", "--rollouts.group-size", "2", "--algorithm.discount", "0.5"),
        ("pass_at_k", "--rollouts.group-size", "4", "--algorithm.pass-k", "2"),
    ],
)
async def test_every_trajectory_with_an_advantage_is_trained(chance, tmp_path: Path, settings: tuple[str, ...]):
    for metrics in await play(tmp_path / "run", *chance, "--algorithm.name", *settings):
        assert metrics["grad_norm"] > 0
        assert metrics["train_tokens"] > 0


@pytest.mark.parametrize("kind", ["lora", "full"])
async def test_a_value_head_is_trained_beside_the_policy_and_resumed_with_it(chance, tmp_path: Path, kind: str):
    settings = [*chance, "--algorithm.name", "gae", "--policy.value-head", "true", "--rollouts.group-size", "1"]
    settings += ["--checkpoints.keep", "9", "--trainer.epochs", "2"]
    if kind == "full":
        rank = settings.index("--policy.rank")
        settings[rank : rank + 2] = ["--policy.kind", "full"]
    first, *_, last = await play(tmp_path / "whole", *settings, "--trainer.steps", "3")
    assert first["train_tokens"] == first["action_tokens"]
    assert first["train_value_loss"] > last["train_value_loss"] > 0
    await play(tmp_path / "halves", *settings)
    await play(tmp_path / "halves", "--trainer.steps", "3", again=True)
    assert weights(tmp_path / "halves", 3) == weights(tmp_path / "whole", 3)


async def test_a_policy_with_a_value_head_learns_to_be_rewarded(tmp_path: Path):
    (tmp_path / "short.py").write_text(
        "from tinker_actors import Environment, Step\n"
        "class Short(Environment):\n"
        "    def reset(self, seed): return 'go'\n"
        "    def step(self, action):\n"
        "        return Step(observation='', reward=sum(c.isdigit() for c in action) / 4, terminated=True)\n"
    )
    settings = [*SMALL, "--environment.name", str(tmp_path / "short.py"), "--algorithm.name", "gae"]
    settings += ["--policy.value-head", "true", "--rollouts.group-size", "1", "--rollouts.tasks-per-step", "32"]
    settings += ["--rollouts.max-tokens", "4", "--trainer.steps", "12", "--trainer.learning-rate", "1e-2"]
    settings += ["--checkpoints.every", "99"]
    metrics = await play(tmp_path / "run", *settings)
    assert metrics[0]["reward"] < 0.25
    assert metrics[-1]["reward"] > 0.6


async def test_self_play_has_a_baseline_for_each_seat(tmp_path: Path):
    (tmp_path / "toss.py").write_text(
        "from tinker_actors import Environment, Step\n"
        "class Toss(Environment):\n"
        "    seats = ('first', 'second')\n"
        "    def reset(self, seed): return {'first': 'go'}\n"
        "    def step(self, actions):\n"
        "        if 'first' in actions:\n"
        "            return Step(observation={'second': 'go'})\n"
        "        win = 1.0 if self.rng.random() < 0.8 else -1.0\n"
        "        return Step(reward={'first': win, 'second': -win}, terminated=True)\n"
    )
    settings = [*SMALL, "--environment.name", str(tmp_path / "toss.py"), "--algorithm.name", "role_baseline"]
    settings += ["--rollouts.group-size", "1", "--rollouts.tasks-per-step", "16"]
    metrics = await play(tmp_path / "run", *settings)
    assert [entry["groups"] for entry in metrics] == [32.0, 32.0]
    kept = json.loads((tmp_path / "run" / "state.json").read_text())["policies"]["policy"]["baselines"]
    assert list(kept) == ["toss/first", "toss/second"]
    first, second = kept.values()
    assert first == -second
    assert first > 0.2
    for entry in metrics:
        assert entry["reward"] == 0.0
        assert entry["grad_norm"] > 0


async def test_a_resumed_run_remembers_its_running_baselines(chance, tmp_path: Path):
    settings = (*chance, "--algorithm.name", "role_baseline", "--rollouts.group-size", "1", "--checkpoints.keep", "9")
    await play(tmp_path / "whole", *settings, "--trainer.steps", "3")
    await play(tmp_path / "halves", *settings)
    assert weights(tmp_path / "halves", 2) == weights(tmp_path / "whole", 2)
    await play(tmp_path / "halves", "--trainer.steps", "3", again=True)
    assert weights(tmp_path / "halves", 3) == weights(tmp_path / "whole", 3)
