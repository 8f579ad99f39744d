"""The example of an objective of one's own learns as its README says."""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples/own_objective"


def test_a_policy_learns_by_an_advantage_and_a_loss_of_the_programs_own() -> None:
    command = [sys.executable, str(FOLDER / "train.py"), "--steps", "15"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert run.returncode == 0, run.stderr
    rewards = [float(found) for found in re.findall(r"reward (\d\.\d+)", run.stdout)]
    assert len(rewards) == 4
    assert rewards[0] < 0.05
    assert rewards[-1] > 0.25
