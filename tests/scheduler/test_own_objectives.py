"""Runs whose advantage and loss are functions of the user's, named in the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.scheduler.silent_observer import Silent

from tinker_actors.errors import AlgorithmError, ConfigError
from tinker_actors.scheduler import RunFolder, check_job, load_config, run_job

SMALL = [
    *("--warmup.method", "none", "--policy.rank", "4", "--rollouts.tasks-per-step", "4", "--rollouts.max-tokens", "2"),
    *("--rollouts.group-size", "4", "--rollouts.workers", "0", "--trainer.threads", "1", "--trainer.epochs", "2"),
    *("--trainer.steps", "2", "--trainer.learning-rate", "1e-2", "--checkpoints.every", "1"),
    *("--evaluation.episodes", "4", "--evaluation.every", "0"),
]

SOURCE = """
import torch
from tinker_actors import Environment, Step


class Chance(Environment):
    def reset(self, seed):
        return "go"

    def step(self, action):
        return Step(reward=self.rng.random(), terminated=True)


def centred(rewards):
    return [reward - sum(rewards) / len(rewards) for reward in rewards]


def weighted(datums, logprobs):  # what importance_sampling is
    loss, tokens = torch.zeros(()), 0
    for datum, row in zip(datums, logprobs):
        trained = torch.tensor(datum.mask, dtype=torch.bool)
        ratio = (row - torch.tensor(datum.logprobs))[trained].exp()
        loss = loss - datum.scale * (ratio * torch.tensor(datum.advantages)[trained]).sum()
        tokens += int(trained.sum())
    return loss, {"tokens_seen": tokens}


def short(rewards):
    return rewards[:-1]


def nonsense(rewards):
    return [float("nan")] * len(rewards)


def constant(datums, logprobs):
    return torch.zeros(()), {}
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A file of the user's."""
    file = tmp_path / "own.py"
    file.write_text(SOURCE)
    return str(file)


async def play(own: str, root: Path, *overrides: str) -> list[dict[str, float]]:
    config = load_config(None, [*SMALL, "--environment.name", own, "--output", str(root), *overrides])
    steps = Silent()
    await run_job(config, RunFolder.create(config), steps)  # pyright: ignore[reportArgumentType]
    return steps.steps


async def test_functions_that_say_what_shipped_ones_do_train_the_same(own: str, tmp_path: Path):
    shipped = await play(
        own, tmp_path / "a", "--algorithm.name", "grpo_no_std", "--algorithm.loss", "importance_sampling"
    )
    ours = await play(own, tmp_path / "b", "--algorithm.name", f"{own}:centred", "--algorithm.loss", f"{own}:weighted")
    weights = [
        load_file(tmp_path / run / "policies/policy/weights/step-000002/weights.safetensors") for run in ("a", "b")
    ]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        assert tensor.sub(weights[1][name]).abs().max() < 1e-5, name
    for theirs, mine in zip(shipped, ours, strict=True):
        assert mine["train_tokens_seen"] == mine["train_tokens"] == theirs["train_tokens"] > 0
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
        for metric in ("kl", "train_kl_k1", "train_ratio_min", "train_ratio_max", "train_advantage_mean"):
            assert mine[metric] == pytest.approx(theirs[metric], rel=1e-3, abs=1e-6)
        assert mine["kl"] > 0  # of the second epoch
        assert mine["train_loss_sum"] == pytest.approx(theirs["train_loss_sum"], rel=1e-3, abs=1e-6)


async def test_a_run_keeps_the_functions_that_it_began_with(own: str, tmp_path: Path):
    other = tmp_path / "other.py"
    other.write_text(SOURCE)

    class Removes(Silent):
        def step(self, step: int, metrics: Mapping[str, float]) -> None:
            super().step(step, metrics)
            other.unlink(missing_ok=True)

    objective = ["--algorithm.name", f"{other}:centred", "--algorithm.loss", f"{other}:weighted"]
    config = load_config(None, [*SMALL, "--environment.name", own, "--output", str(tmp_path / "run"), *objective])
    steps = Removes()
    await run_job(config, RunFolder.create(config), steps)
    assert not other.exists()
    assert [metrics["grad_norm"] > 0 for metrics in steps.steps] == [True, True]


@pytest.mark.parametrize("function", ["short", "nonsense"])
async def test_an_advantage_that_is_none_ends_the_run_with_what_was_wrong(own: str, tmp_path: Path, function: str):
    with pytest.raises(AlgorithmError, match=rf"own\.py:{function} gave \[.*a finite advantage for each is needed"):
        await play(own, tmp_path / "run", "--algorithm.name", f"{own}:{function}")


async def test_a_loss_without_a_gradient_ends_the_run(own: str, tmp_path: Path):
    with pytest.raises(AlgorithmError, match="doesn't depend on the log-probs"):
        await play(own, tmp_path / "run", "--algorithm.loss", f"{own}:constant")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithm.name", "grpoo"], "algorithm.name is 'grpoo'; grpo, "),
        (["--algorithm.loss", "ppoo"], "algorithm.loss is 'ppoo'; importance_sampling, ppo, "),
        (["--algorithm.name", "OWN:centred", "--algorithm.discount", "0.9"], "algorithm.discount is 0.9, but "),
        (["--algorithm.loss", "OWN:weighted", "--algorithm.clip-low", "0"], "algorithm.clip_low is 0.0, but "),
        (["--algorithm.loss", "OWN:weighted", "--algorithm.entropy-coefficient", "0.1"], "entropy_coefficient is 0.1"),
        (["--algorithm.loss", "OWN:weighted", "--kl.coefficient", "0.1"], "kl.where 'reward' is needed"),
        (
            ["--algorithm.loss", "OWN:weighted", "--algorithm.name", "gae", "--policy.value-head", "true"],
            "algorithm.name is 'gae', whose value head",
        ),
        (
            ["--algorithm.loss", "OWN:weighted", "--trainer.backend", "tinker", "--sampler.backend", "tinker"],
            "'local' is needed",
        ),
        (["--algorithm.name", "OWN:missing"], "'missing' in "),
        (["--algorithm.name", "OWN:Chance.step"], "'Chance.step' in "),
        (["--algorithm.loss", "gone.py:loss"], "algorithm.loss is 'gone.py:loss': there is no file"),
        (["--algorithm.loss", "no_such_module:loss"], "module 'no_such_module' can't be imported"),
    ],
)
def test_an_objective_that_can_not_work_is_refused_before_the_run(own: str, arguments: list[str], message: str):
    with pytest.raises(ConfigError) as caught:
        check_job(load_config(None, ["--environment.name", own, *(word.replace("OWN", own) for word in arguments)]))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
