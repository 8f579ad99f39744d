"""The example of two policies does what its README says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples/two_policies_one_base"


def losses(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"(?:next|mirror) (\d\.\d+)", text)]


@pytest.mark.timeout(600)
def test_two_policies_learn_their_tasks_in_joint_passes() -> None:
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, str(FOLDER / "two_policies.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, env=environment)
    assert run.returncode == 0, run.stderr
    readme = (FOLDER / "README.md").read_text()
    assert losses(run.stdout) == pytest.approx(losses(readme), abs=0.05)
    for task in ("next", "mirror"):
        assert f"{task}: 26 of 26 right" in run.stdout
