"""The example of images, at a size for every test run: RL on images moves an evaluation on other images."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tinker_actors.cli import main
from tinker_actors.data import Image
from tinker_actors.scheduler import Phase, RunFolder, RunSummary, load_config, run_job

EXAMPLE = Path(__file__).parents[2] / "examples/vision_digits/config.toml"
SHORT = [
    *("--rollouts.workers", "0", "--trainer.steps", "16"),
    *("--evaluation.every", "0", "--evaluation.episodes", "128", "--evaluation.temperature", "1.0"),
]


class Silent:
    """Remembers the steps."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, float]] = []

    def started(self, title: str, folder: Path, total_steps: int, resumed_at: int) -> None: ...
    def phase(self, phase: Phase, step: int, total: int) -> None: ...
    def progress(self, done: int, total: int) -> None: ...
    def evaluated(self, step: int, reward: float) -> None: ...
    def transcript(self, label: str, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def finished(self, summary: RunSummary, folder: Path) -> None: ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.append(metrics)


@pytest.mark.slow
@pytest.mark.timeout(170)
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
