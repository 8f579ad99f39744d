"""What a job's own process says where the job can't work, and where something else goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tinker_actors.scheduler.job_folder import JobFolder, Outcome


def ended(root: Path, **config: object) -> tuple[Outcome, str]:
    """How a job's process says that it went, and what it wrote for people."""
    folder = JobFolder(root)
    folder.prepare(config)
    ready, told = os.pipe()
    alive, ours = os.pipe()  # its standard input, at whose end it would end too
    try:
        command = [sys.executable, "-m", "tinker_actors.console.task_process", str(root), "1", str(told)]
        done = subprocess.run(command, stdin=alive, capture_output=True, text=True, pass_fds=[told], timeout=100)
    finally:
        for end in (ready, told, alive, ours):
            os.close(end)
    outcome = folder.outcome_of(1)
    assert outcome is not None
    assert done.returncode == 1
    return outcome, done.stderr


def test_a_configuration_that_can_not_work_is_told_in_one_line(tmp_path: Path):
    outcome, written = ended(tmp_path / "job", job="sft", data={"train": "gone.jsonl"})
    assert not outcome.again
    assert outcome.detail == "gone.jsonl: no such file"
    assert written == "gone.jsonl: no such file\n"


def test_what_else_goes_wrong_is_told_with_its_traceback(tmp_path: Path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "run").write_text("a file where the run's folder would be")
    outcome, written = ended(tmp_path / "job", environment={"name": "bandit"})
    assert outcome.again
    assert written.startswith("Traceback (most recent call last):")
    assert written.endswith(f"{outcome.detail.removeprefix('RunError: ')}\n")
