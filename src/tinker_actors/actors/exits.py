"""How the end of a process is noticed, and said."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path


def watch_exit(
    loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes], exited: Callable[[], None]
) -> Callable[[], None]:
    """Have `exited` called on the loop once a process has ended, without polling; it may be called more than once.

    Where the system can tell without reaping, the process hasn't been reaped then: its id can't mean anyone else.

    Returns:
        Call it to watch no longer; again, and it does nothing.

    Raises:
        OSError: Neither a descriptor nor a thread is left to watch with.
    """
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(process.pid)
            try:
                loop.add_reader(descriptor, exited)
            except BaseException:  # whatever it was, the descriptor is not leaked
                os.close(descriptor)
                raise
            left = [descriptor]

            def unwatch() -> None:
                while left:
                    loop.remove_reader(left[0])
                    os.close(left.pop())

            return unwatch

    def wait() -> None:
        process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(exited)

    try:
        threading.Thread(target=wait, daemon=True).start()
    except RuntimeError as error:  # what Python makes of a system that has no thread left
        raise OSError(errno.EAGAIN, f"no thread can be started to watch process {process.pid}") from error
    return lambda: None


def describe_exit(code: int | None) -> str:
    """A return code of `subprocess` in words."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"exited with status {code}"


def end_of(log: Path, size: int = 4096) -> str:
    """The last `size` bytes of what a process wrote, as text; empty where there is no such file."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
