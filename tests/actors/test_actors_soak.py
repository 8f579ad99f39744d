"""A minute of soak: ten thousand actors, killed processes, cancelled asks; nothing is lost, doubled or left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_soak_loses_doubles_and_leaves_nothing(tmp_path: Path) -> None:
    report = tmp_path / "soak.json"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", "--minutes", "1", "--json", str(report)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=230,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["case"]: row["median"] for row in json.loads(report.read_text())}
    assert rows["soak_failed_checks"] == 0
    assert rows["soak_kills"] > 3
    assert rows["soak_asks"] > 100
