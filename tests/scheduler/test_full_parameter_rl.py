"""The example of full-parameter RL, at a size for every test run: training all weights moves the evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open
from silent_observer import Silent

from tinker_actors.policies import SnapshotStore
from tinker_actors.scheduler import RunFolder, load_config, run_job

EXAMPLE = Path(__file__).parents[2] / "examples/full_parameter_rl/config.toml"
SHORT = ["--rollouts.workers", "0", "--trainer.steps", "10", "--evaluation.every", "0"]


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_rl_of_all_weights_raises_the_evaluation(tmp_path: Path):
    config = load_config(EXAMPLE, [*SHORT, "--output", str(tmp_path / "run")])
    folder = RunFolder.create(config)
    observer = Silent()
    summary = await run_job(config, folder, observer)
    assert summary.eval_after > summary.eval_before + 0.1
    assert len(observer.steps) == 10
    snapshot = SnapshotStore(folder.policies).latest("policy")
    assert snapshot.kind == "full"
    with safe_open(Path(snapshot.path) / "model.safetensors", "pt") as weights:
        assert any("embed_tokens" in name for name in weights.keys())  # noqa: SIM118
