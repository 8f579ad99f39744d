"""The soak as a process beside the other tests, which would wait for it for longer than they take."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path


class Soak:
    """`benchmarks.soak` for a minute, once for all processes that the tests are shared out to.

    Args:
        folder: That all of them know. Its report and what it prints lie there. The first that comes begins the soak.
    """

    def __init__(self, folder: Path) -> None:
        self.report = folder / "soak.json"
        self._output = folder / "output.txt"
        self._runs = folder / "runs"  # locked by the soak as long as it does
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(exist_ok=True)
        own = folder / f"runs-{os.getpid()}"
        with own.open("w") as lock, self._output.open("ab") as output:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                os.link(own, self._runs)
            except FileExistsError:
                return  # another has begun it
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.soak", "--minutes", "1", "--json", str(self.report)],
                cwd=Path(__file__).parents[2],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(lock.fileno(),),
            )

    def wait(self) -> str:
        """Wait for its end; what it printed."""
        with self._runs.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
        return self._output.read_text()

    def end(self, *, awaited: bool) -> None:
        """Kill it if it still runs and nobody can await it any more; its children end with it."""
        if self._process is not None:
            if not awaited:
                self._process.kill()
            self._process.wait()
