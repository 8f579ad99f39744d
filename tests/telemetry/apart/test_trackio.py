"""Trackio, with its real package, on this machine."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("trackio")

pytestmark = pytest.mark.libraries

RUN = """
import sys
from tinker_actors.telemetry import Tracking, TrackioTracker

first, last = map(int, sys.argv[1:])
notes = []
tracking = Tracking({"trackio": TrackioTracker(project="project", name="name")}, {"seed": 3}, note=notes.append)
for step in range(first, last):
    tracking.log(step, {"reward": step / 4, "policy/a/kl": 0.5})
tracking.finish("succeeded")
assert notes == [], notes
"""

READ = """
import json
from trackio import Api, SQLiteStorage

(run,) = Api().runs("project")
print(json.dumps([run.name, run.config["seed"], SQLiteStorage.get_logs("project", run.name)]))
"""


def python(folder, program, *arguments):
    """Run a program that has its Trackio in a folder; what it printed last."""
    environment = {**os.environ, "TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().rpartition("\n")[2]


def test_a_run_and_what_it_went_on_with_are_one_run_with_all_steps(tmp_path):
    python(tmp_path, RUN, 1, 4)
    python(tmp_path, RUN, 4, 6)
    name, seed, history = json.loads(python(tmp_path, READ))
    assert (name, seed) == ("name", 3)
    assert [(row["step"], row["reward"], row["policy/a/kl"]) for row in history] == [
        (step, step / 4, 0.5) for step in range(1, 6)
    ]
