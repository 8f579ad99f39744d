"""`tinker-actors serve` in a process of its own, and what it uses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

NAME = "bench/model"
"""What clients call the model."""


class Service:
    """A running service.

    Attributes:
        url: Where it is.
        root: What it keeps.
    """

    def __init__(self, process: subprocess.Popen[str], url: str, root: Path) -> None:
        self._process, self.url, self.root = process, url, root

    def processor_seconds(self) -> float:
        """Processor time of all of its processes, and of this one, so far."""
        own = psutil.Process()
        served = psutil.Process(self._process.pid)
        times = [found.cpu_times() for found in (own, served, *served.children(recursive=True))]
        return sum(time.user + time.system for time in times)

    def megabytes(self) -> float:
        """Memory of the service's own process; the models lie in others."""
        return psutil.Process(self._process.pid).memory_info().rss / 2**20


@contextmanager
def service(model: Path | str, scratch: Path, *, threads: int = 1) -> Iterator[Service]:
    """Serve a model, a directory or a name of the catalogue."""
    root = scratch / "service"
    command = [sys.executable, "-m", "tinker_actors.cli", "serve", "--model", f"{NAME}={model}", "--port", "0"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "200",
    }
    with subprocess.Popen(
        [*command, "--root", str(root)], stdout=subprocess.PIPE, text=True, env=environment, cwd=scratch
    ) as process:
        try:
            yield Service(process, _url(process), root)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if found := re.search(r"serving on (http\S+)", line):
            return found[1]
    raise RuntimeError(f"the service ended before it served: {''.join(lines)}")
