"""The soak as a process beside the other tests, which would wait for it for longer than they take."""

import os
import subprocess
import sys
from pathlib import Path


class Soak:
    """`benchmarks.soak` for a minute. Its report and what it prints lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.report = folder / "soak.json"
        self._output = folder / "output.txt"
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.soak", "--minutes", "1", "--json", str(self.report)],
                cwd=Path(__file__).parents[2],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait(self, timeout: float) -> tuple[int, str]:
        """Its exit status and what it printed, once it has ended; `timeout` is in seconds."""
        return self._process.wait(timeout), self._output.read_text()

    def end(self) -> None:
        """Kill it, if it still runs; its children end with it."""
        self._process.kill()
        self._process.wait()
