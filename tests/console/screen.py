"""A `tinker-actors` process in a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
from pathlib import Path


class Screen:
    """A process in a terminal of its own."""

    def __init__(self, *arguments: str | Path) -> None:
        self._controller, terminal = pty.openpty()
        environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tinker_actors.cli", *map(str, arguments)],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=environment | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C reaches it
        )
        os.close(terminal)

    def until(self, text: str) -> str:
        """What is written until `text` is."""
        seen = b""
        while text.encode() not in seen:
            ready, _, _ = select.select([self._controller], [], [], 100)
            assert ready, f"{text!r} did not come in {seen.decode()}"
            seen += os.read(self._controller, 65536)
        return seen.decode()

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._controller, keys.encode())

    def end(self) -> int:
        """The exit code, once it is over."""
        try:
            while select.select([self._controller], [], [], 30)[0]:
                os.read(self._controller, 65536)
        except OSError:  # how a terminal without a process reads on Linux
            pass
        os.close(self._controller)  # hangs up on a process that is still there
        return self._process.wait(250)
