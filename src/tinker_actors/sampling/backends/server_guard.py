"""The process between a server and its owner, which leads their group: `python server_guard.py GRACE COMMAND ...`.

It waits for the server's end, or for the end of its own standard input, which the owner holds open, and ends the whole
group. It is run by its path and imports nothing of the package, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_TRACKER = b"multiprocessing.resource_tracker"
_TRACKERS_TIME = 2.0  # seconds; one takes milliseconds


def guard(grace: float, command: list[str]) -> None:
    """Run a command to its end or its owner's, and leave nothing of it.

    Args:
        grace: Seconds between asking the command to end and ending it.
        command: What to run.
    """
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def on_owners_end() -> None:
        sys.stdin.buffer.read()
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace)
        _end_group()

    threading.Thread(target=on_owners_end, daemon=True).start()
    status = child.wait()
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
    sys.stdout.write(f"the server {how}\n")
    sys.stdout.flush()
    _end_group()


def _end_group() -> None:
    """Kill all, but Python's resource trackers last: these remove the shared memory that killed processes leave."""
    for pid, tracker in _others():
        if not tracker:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + _TRACKERS_TIME
    while time.monotonic() < until and any(_others()):
        time.sleep(0.01)
    os.killpg(0, signal.SIGKILL)


def _others() -> Iterator[tuple[int, bool]]:
    """The other processes of the group, and whether each is a resource tracker; none where there is no /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        try:
            state, _, group = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:3]
            if int(group) == os.getpgrp() and state != b"Z":
                yield int(folder.name), _TRACKER in (folder / "cmdline").read_bytes()
        except OSError:  # it is gone
            pass


if __name__ == "__main__":
    guard(float(sys.argv[1]), sys.argv[2:])
