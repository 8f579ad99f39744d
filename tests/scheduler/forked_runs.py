"""Runs in processes that may be killed at any time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any


class ForkedRuns:
    """Forks of one process that has imported everything, one after the other."""

    def __init__(self) -> None:
        script = str(Path(__file__).with_name("run_in_forks.py"))
        self._process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(
        self,
        root: Path,
        overrides: Sequence[str],
        *,
        kill_at: tuple[int, float] | None = None,
        sabotage: str | None = None,
    ) -> dict[str, Any]:
        """Begin a run with these overrides, or go on with the one in the folder.

        Args:
            root: The run's folder.
            overrides: Its settings.
            kill_at: The number of a phase, from 1, and how many seconds after its beginning the run is killed; a run
                that comes to its end before is killed there. So it is killed on a machine of any speed.
            sabotage: What is to happen when a step is saved; a function of `run_in_forks`.

        Returns:
            The exit `code`, the `seconds` it took, and how many `phases` began.
        """
        request = {"root": str(root), "overrides": overrides, "kill_at": kill_at, "sabotage": sabotage}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        return json.loads(self._process.stdout.readline())

    def kill_somewhere(self, root: Path, overrides: Sequence[str], whole: Mapping[str, Any], draw: Random) -> str:
        """Begin a run, or go on with it, and kill it at a random point; what the point was.

        Args:
            root: As in `ask`.
            overrides: As in `ask`.
            whole: What `ask` answered for a run that was not killed.
            draw: Where the point comes from.
        """
        seconds = draw.uniform(0, 2) * whole["seconds"] / whole["phases"]
        # earlier ones more often: a run that goes on has fewer
        kill_at = 1 + int(whole["phases"] * draw.random() ** 2), seconds
        assert self.ask(root, overrides, kill_at=kill_at)["code"] == -signal.SIGKILL
        return f"{seconds:.3f} s into phase {kill_at[0]}"

    def stop(self) -> None:
        """End the process once its last run is done."""
        self._process.communicate()
