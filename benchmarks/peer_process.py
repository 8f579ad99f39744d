"""A system that is measured in a process of its own, which reads questions and writes answers, a line of JSON each."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class PeerProcess:
    """One system's process.

    Attributes:
        system: The system.
        failed: Cases that it couldn't do, and why.
    """

    def __init__(self, system: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.system = system
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            env=environment,
        )
        self.failed: dict[str, str] = {}

    def ask(self, case: str, *details: int) -> dict[str, Any] | None:
        """What it measures for a case, or None where it failed."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([case, *details]) + "\n")
        self.process.stdin.flush()
        answer = self.read()
        if "error" in answer:
            self.failed[case] = answer["error"]
            return None
        return answer

    def read(self) -> Any:
        """Its next line.

        Raises:
            RuntimeError: The process ended.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self.system} ended; its error output says why")
        return json.loads(line)

    def close(self) -> None:
        """End the process and all that it started."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
