"""Runs in processes that may be killed at any time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class ForkedRuns:
    """Forks of one process that has imported everything, one after the other."""

    def __init__(self) -> None:
        script = str(Path(__file__).with_name("run_in_forks.py"))
        self._process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(
        self, root: Path, overrides: Sequence[str], *, kill_after: float | None = None, sabotage: str | None = None
    ) -> dict[str, Any]:
        """Begin a run with these overrides, or go on with the one in the folder; its exit code and seconds."""
        request = {"root": str(root), "overrides": overrides, "kill_after": kill_after, "sabotage": sabotage}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        return json.loads(self._process.stdout.readline())

    def stop(self) -> None:
        """End the process once its last run is done."""
        self._process.communicate()
