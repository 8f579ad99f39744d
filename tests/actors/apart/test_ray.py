"""Nodes in a Ray cluster, with the real package, on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(420)]

HERE = Path(__file__).parent


def test_nodes_run_in_a_cluster_and_one_whose_worker_is_killed_is_started_again():
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, str(HERE / "ray_program.py")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("ended in order\n")
