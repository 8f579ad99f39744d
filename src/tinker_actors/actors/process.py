"""A child process: started afresh, never forked; noticed at once when it ends; gone when its parent is.

Its standard input is a pipe that the parent keeps open: the first line configures the child, the end of the file
tells it that the parent is gone. It leads a process group of its own, so that a terminal's Ctrl-C reaches the
parent only, and so that whatever it leaves behind can be killed with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tinker_actors.actors.errors import SpawnError
from tinker_actors.actors.exits import describe_exit, end_of, watch_exit

_ROOT = str(Path(__file__).resolve().parents[2])
_BOOT = "import sys; sys.path.insert(0, {root!r}); from tinker_actors.actors.worker import main; main()"


class ChildProcess:
    """One incarnation of a child node. `on_exit` is called with this object on the loop once it has ended."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: Mapping[str, Any],
        log: Path,
        env: Mapping[str, str] | None,
        on_exit: Callable[[ChildProcess], None],
    ) -> None:
        self._log = log
        self._on_exit = on_exit
        self.ended = loop.create_future()
        if not sys.executable:
            raise SpawnError("child nodes need sys.executable, which is not set in this process")
        with log.open("wb") as output:
            self._popen = subprocess.Popen(
                [sys.executable, "-c", _BOOT.format(root=_ROOT)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env} if env else None,
                process_group=0,
            )
        self.pid = self._popen.pid
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(json.dumps(config).encode() + b"\n")
            self._popen.stdin.flush()
        try:
            self._unwatch = watch_exit(loop, self._popen, self._exited)
        except BaseException:  # nobody would see it end
            self.kill()
            self._popen.wait()
            self.release()
            raise

    def tail(self) -> str:
        """The end of what the child wrote."""
        return end_of(self._log)

    def how_it_ended(self) -> str:
        """In words."""
        return describe_exit(self._popen.returncode)

    def release(self) -> None:
        """Close the pipe that keeps the child alive, and say so: others may hold it open too."""
        if self._popen.stdin is not None and not self._popen.stdin.closed:
            with contextlib.suppress(OSError):
                self._popen.stdin.write(b"\n")
                self._popen.stdin.close()

    def kill(self) -> None:
        """End the child, and all that it has started in its group, now."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self, timeout: float) -> None:
        """Wait for the child's end without the loop, after `kill`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout)
        self._exited()

    def _exited(self) -> None:
        if self.ended.done():
            return
        # Before it is reaped its process id, and so its group's, can't mean anyone else.
        self.kill()
        if self._popen.poll() is None:
            return
        self._unwatch()
        self.release()
        self.ended.set_result(None)
        self._on_exit(self)
