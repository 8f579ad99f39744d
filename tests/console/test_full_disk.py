"""A disk that fills while a run saves: one line that says what to do, and a run that goes on once that is done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError
from safetensors.torch import save_file

from tinker_actors.cli import main
from tinker_actors.training import checkpoint

QUICK = (
    *("--warmup.method", "none", "--trainer.steps", "3", "--checkpoints.every", "1", "--trainer.threads", "1"),
    *("--rollouts.tasks-per-step", "1", "--rollouts.group-size", "2", "--rollouts.workers", "1"),
    *("--evaluation.episodes", "1", "--evaluation.every", "0", "--plain"),
)


def _save_but_second(tensors: dict[str, Any], path: Path) -> None:
    """Writes weights, but finds the disk full at the second step's checkpoint, with the words of the library."""
    if "step-000002" in Path(path).parts:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    save_file(tensors, path)


def test_a_disk_that_fills_amid_a_checkpoint_ends_the_run_with_what_to_do_and_it_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    output = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checkpoint, "save_file", _save_but_second)
        assert main(["run", "number_guess", "--output", str(output), *QUICK]) == 1
    errors = capfd.readouterr().err
    assert errors == (
        f"tinker-actors: No space left on device; make room on the disk of {output}/policies, then go on with: "
        f"tinker-actors run {output} --resume\n"
    )
    assert json.loads((output / "state.json").read_text())["step"] == 1
    assert main(["run", str(output), "--resume", "--plain"]) == 0
    assert json.loads((output / "summary.json").read_text())["steps"] == 3
