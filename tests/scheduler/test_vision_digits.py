"""The example of images, at a size for every test run: RL on images moves an evaluation on other images."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from silent_observer import Silent

from tinker_actors.cli import main
from tinker_actors.data import Image
from tinker_actors.scheduler import RunFolder, load_config, run_job

EXAMPLE = Path(__file__).parents[2] / "examples/vision_digits/config.toml"
SHORT = [
    *("--rollouts.workers", "0", "--trainer.steps", "16"),
    *("--evaluation.every", "0", "--evaluation.episodes", "128", "--evaluation.temperature", "1.0"),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_rl_on_images_raises_the_evaluation_on_images_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = load_config(EXAMPLE, [*SHORT, "--output", str(tmp_path / "run")])
    observer = Silent()
    summary = await run_job(config, RunFolder.create(config), observer)
    assert summary.eval_after > summary.eval_before + 0.1
    for metrics in observer.steps:
        assert metrics["train_ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    shown = tmp_path / "shown.png"
    shown.write_bytes(Image.of(np.zeros((8, 8), np.uint8)).data)
    ask = ["sample", str(tmp_path / "run"), "--image", str(shown), "--prompt", "Which digit?", "--max-tokens", "2"]
    assert await asyncio.to_thread(main, ask) == 0
    assert len(capsys.readouterr().out.strip()) == 1
