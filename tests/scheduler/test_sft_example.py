"""The supervised example, at a size for every run of the tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.scheduler.sft_material import Recorder

from tinker_actors.scheduler import RunFolder, SftSummary, load_config, run_job

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sft"


async def test_the_loss_on_held_conversations_falls_to_a_fifth_in_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    output = ("--output", str(tmp_path / "run"), "--trainer.epochs", "1", "--trainer.threads", "1")
    config = load_config(EXAMPLE / "config.toml", output)
    summary = await run_job(config, RunFolder.create(config), Recorder())
    assert isinstance(summary, SftSummary)
    assert (summary.steps, summary.examples, summary.skipped) == (25, 400, 0)
    assert summary.eval_before == pytest.approx(4.90, abs=0.1)
    assert summary.eval_after is not None
    assert summary.eval_after < 1.0


def test_the_example_s_data_is_what_its_script_writes(tmp_path: Path):
    spec = importlib.util.spec_from_file_location("make_data", EXAMPLE / "make_data.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name, count, seed in (("train", 400, 0), ("held", 60, 1)):
        script.write(tmp_path / f"{name}.jsonl", count, seed)
        assert (tmp_path / f"{name}.jsonl").read_text() == (EXAMPLE / f"{name}.jsonl").read_text()
