"""The cookbook's recipes, as they come from PyPI, against `tinker-actors serve`: `make test-cookbook` runs them.

Their requirements clash with this project's: `COOKBOOK_PYTHON` names the interpreter of an environment that has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from workshop import MODEL, RENDERER, Workshop

PACKAGE = "tinker_cookbook.recipes"

pytestmark = [pytest.mark.cookbook, pytest.mark.timeout(1800)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipes:
    """Runs recipes against a service.

    Attributes:
        workshop: Where they run.
        url: Where the service is.
        scratch: Folder for their homes and logs.
    """

    workshop: Workshop
    url: str
    scratch: Path

    def run(self, module: str, name: str, *settings: str) -> list[dict[str, float]]:
        """Run one to its end; the rows of metrics that it wrote."""
        with self.started(module, name, *settings) as recipe:
            output, _ = recipe.communicate(timeout=1500)
        assert recipe.returncode == 0, output[-6000:]
        return rows_of(self.scratch / name / "metrics.jsonl")

    def run_through_a_kill(self, module: str, name: str, *settings: str, beyond: int) -> list[dict[str, float]]:
        """Kill one once it has logged so many steps, and run it again to its end; the rows of both."""
        metrics = self.scratch / name / "metrics.jsonl"
        with self.started(module, name, *settings) as recipe:
            while not metrics.exists() or metrics.read_text().count("\n") < beyond:
                assert recipe.poll() is None, "the recipe ended before it could be killed"
                time.sleep(0.02)
            recipe.kill()
        return self.run(module, name, *settings)

    def started(self, module: str, name: str, *settings: str) -> subprocess.Popen[str]:
        """One that has been started, with its log below `scratch`."""
        home = self.scratch / f"{name}-home"
        home.mkdir(exist_ok=True)
        return subprocess.Popen(
            [str(self.workshop.python), "-m", f"{PACKAGE}.{module}", f"log_path={self.scratch / name}", *settings],
            cwd=self.workshop.folder,
            env=self.workshop.environment(home, url=self.url, key="tml-local"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def rows_of(file: Path) -> list[dict[str, float]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recipes]:
    """A furnished workshop and a service of its base model."""
    python = os.environ.get("COOKBOOK_PYTHON")
    if python is None:
        pytest.fail("COOKBOOK_PYTHON is not set; `make test-cookbook` sets it")
    kept = os.environ.get("COOKBOOK_WORKSHOP")
    workshop = Workshop(
        folder=Path(kept) if kept else tmp_path_factory.mktemp("workshop"), python=Path(python).absolute()
    )
    if not workshop.base.exists():
        workshop.furnish()
    root = tmp_path_factory.mktemp("service")
    command = ["-m", "tinker_actors.cli", "serve", "--model", f"{MODEL}={workshop.base}", "--port", "0"]
    with (
        (root / "serve.log").open("w") as log,
        subprocess.Popen(
            [sys.executable, *command, "--root", str(root / "data")], stdout=subprocess.PIPE, stderr=log, text=True
        ) as served,
    ):
        try:
            yield Recipes(workshop=workshop, url=_url(served), scratch=tmp_path_factory.mktemp("recipes"))
        finally:
            served.terminate()
            served.wait(30)


def _url(served: subprocess.Popen[str]) -> str:
    assert served.stdout is not None
    for line in served.stdout:
        if "http://" in line:
            return "http://" + line.partition("http://")[2].split()[0].rstrip("/,.")
    raise AssertionError("the service ended before it said where it serves")


def _rl(*, steps: int) -> tuple[str, ...]:
    return (f"model_name={MODEL}", f"renderer_name={RENDERER}", f"max_steps={steps}", "eval_every=0", "save_every=0")


def test_guess_number_learns(recipes: Recipes):
    rows = recipes.run(
        "multiplayer_rl.guess_number.train",
        "guess",
        *_rl(steps=12),
        "batch_size=8",
        "group_size=8",
        "max_tokens=24",
        "learning_rate=3e-3",
    )
    rewards = [row["env/all/reward/total"] for row in rows if "env/all/reward/total" in row]
    assert len(rewards) == 12
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 1


def test_tic_tac_toe_of_two_players_completes(recipes: Recipes):
    rows = recipes.run(
        "multiplayer_rl.text_arena.train",
        "arena",
        *_rl(steps=2),
        "batch_size=8",
        "num_train_datapoints=32",
        "num_test_datapoints=4",
        "test_opponent=random",
        "max_tokens=8",
    )
    assert len(rows) >= 2


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sync", ()),
        ("async", ("max_steps_off_policy=2",)),
        (
            "stream",
            ("stream_minibatch_config.groups_per_batch=8", "stream_minibatch_config.num_minibatches=2"),
        ),
    ],
)
def test_arithmetic_completes(recipes: Recipes, name: str, settings: tuple[str, ...]):
    rows = recipes.run(
        "math_rl.train",
        f"arithmetic-{name}",
        *_rl(steps=3),
        "env=arithmetic",
        "groups_per_batch=8",
        "group_size=4",
        "max_tokens=12",
        "lora_rank=8",
        "learning_rate=1e-3",
        *settings,
    )
    assert len(rows) >= 3


def test_rl_loop_completes(recipes: Recipes):
    rows = recipes.run(
        "rl_loop",
        "rl-loop",
        f"model_name={MODEL}",
        "batch_size=8",
        "group_size=4",
        "max_tokens=16",
        "max_steps=3",
        "save_every=2",
    )
    assert sum("reward/total" in row for row in rows) == 3


def test_sl_loop_that_was_killed_goes_on_with_the_same_numbers(recipes: Recipes):
    settings = (f"model_name={MODEL}", "batch_size=8", "learning_rate=3e-3", "save_every=3")
    rows = recipes.run_through_a_kill("sl_loop", "sl-loop", *settings, beyond=4)
    assert [row["step"] for row in rows[-5:]] == [3, 4, 5, 6, 7]
    before, after = rows[:-5], rows[-5:]
    assert [row["train_mean_nll"] for row in before[3:]] == [row["train_mean_nll"] for row in after][: len(before) - 3]
    assert len(before) > 3
    assert after[-1]["train_mean_nll"] < before[0]["train_mean_nll"]


def test_chat_sl_that_was_killed_goes_on_from_its_checkpoint(recipes: Recipes):
    settings = (
        f"model_name={MODEL}",
        f"renderer_name={RENDERER}",
        "batch_size=8",
        "save_every=2",
        "eval_every=0",
        "infrequent_eval_every=0",
        "behavior_if_log_dir_exists=resume",
    )
    rows = recipes.run_through_a_kill("chat_sl.train", "chat-sl", *settings, beyond=3)
    assert [row["step"] for row in rows[-6:]] == [2, 3, 4, 5, 6, 7]


def test_dpo_completes(recipes: Recipes):
    rows = recipes.run(
        "preference.dpo.train",
        "dpo",
        f"model_name={MODEL}",
        f"renderer_name={RENDERER}",
        "dataset=hhh",
        "batch_size=8",
        "learning_rate=1e-3",
        "max_steps=3",
    )
    assert sum("dpo_loss" in row for row in rows) == 3


def test_on_policy_distillation_completes(recipes: Recipes):
    rows = recipes.run(
        "distillation.on_policy_distillation",
        "distillation",
        *_rl(steps=2),
        f"teacher_model={MODEL}",
        "dataset=deepmath",
        "groups_per_batch=8",
        "group_size=4",
        "max_tokens=12",
        "lora_rank=8",
    )
    assert any("teacher_kl" in key for row in rows for key in row)
