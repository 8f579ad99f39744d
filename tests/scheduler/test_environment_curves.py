"""The shipped environments' curves, at a size for every test run: training moves each of them the way it should."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from silent_observer import Silent

from tinker_actors.scheduler import RunFolder, RunSummary, load_config, run_job

ENVIRONMENTS = Path(__file__).parents[2] / "environments"

# what is changed in the environment's own config, and by how much the mean reward of the evaluations has to rise;
# those whose warm-up alone takes half a minute are left to `-m exhaustive`
CURVES = [
    pytest.param("bandit", {"trainer.steps": "10"}, 0.15),
    pytest.param("number_guess", {"trainer.steps": "10"}, 0.1),
    pytest.param("signalling", {"trainer.steps": "10"}, 0.2),
    pytest.param("math_tools", {"warmup.steps": "60", "trainer.steps": "4"}, 0.08),
    pytest.param("gomoku", {"trainer.steps": "5", "evaluation.temperature": "1.0"}, 0.05),
    pytest.param("zoom", {"trainer.steps": "8", "evaluation.temperature": "1.0"}, 0.1),
    pytest.param("shapes", {"trainer.steps": "20"}, 0.1, marks=pytest.mark.exhaustive),
    pytest.param("user_simulator", {"trainer.steps": "20"}, 0.06, marks=pytest.mark.exhaustive),
    pytest.param("tic_tac_toe", {"trainer.steps": "20"}, 0.2, marks=pytest.mark.exhaustive),
    pytest.param("arithmetic", {"trainer.steps": "40"}, 0.06, marks=pytest.mark.exhaustive),
]


async def run(name: str, folder: Path, changes: dict[str, str]) -> RunSummary:
    overrides = {**changes, "evaluation.every": "0", "output": str(folder)}
    arguments = [part for key, value in overrides.items() for part in (f"--{key}", value)]
    config = load_config(ENVIRONMENTS / name / "config.toml", arguments)
    return await run_job(config, RunFolder.create(config), Silent())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "changes", "rise"), CURVES)
async def test_training_raises_the_evaluation(name: str, changes: dict[str, str], rise: float, tmp_path: Path):
    summary = await run(name, tmp_path / "run", changes)
    assert summary.eval_after > summary.eval_before + rise


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_training_soon_raises_the_share_of_right_sums_among_those_that_it_asks(tmp_path: Path):
    summary = await run("arithmetic", tmp_path / "run", {"warmup.steps": "100", "trainer.steps": "10"})
    assert summary.reward_first is not None
    assert summary.reward_last is not None
    assert summary.reward_last > summary.reward_first + 0.1


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_self_play_makes_a_policy_of_kuhn_poker_harder_to_exploit(tmp_path: Path):
    await run("kuhn_poker", tmp_path / "run", {"trainer.steps": "10"})
    measured = _program("kuhn_poker/exploitability.py").measured
    values = [value async for _, value, _ in measured(tmp_path / "run", every=10)]
    assert len(values) == 2
    assert values[-1] < values[0] - 0.04


def _program(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ENVIRONMENTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
