"""The private folder of a running mesh: its sockets and its children's logs.

A mesh that was killed can't remove its folder. Each holds a lock in its own for as long as it lives; the next mesh of
the same user removes the folders whose locks nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "tinker-actors-"
SOCKET_PATH_LIMIT = 100  # bytes: what every system allows for a socket's path
YOUNG = 2.0  # seconds: a folder of this age may not have its lock yet
_LOCK = "lock"
_LONGEST_NAME = 15  # bytes of a socket's name


class PrivateFolder:
    """A new folder that only this user can enter, with a path short enough for sockets in it."""

    def __init__(self) -> None:
        parent = where()
        _sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the folder and give its lock back."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def where() -> Path:
    """In which folder the private ones are: the temporary one, unless its path is too long for sockets in them."""
    parent = tempfile.gettempdir()
    longest = len(os.fsencode(parent)) + len(f"/{PREFIX}12345678/") + _LONGEST_NAME
    return Path(parent if longest <= SOCKET_PATH_LIMIT else "/tmp")


def _sweep(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or just being made or removed
            status = path.stat()
            if status.st_uid != os.getuid() or time.time() - status.st_ctime < YOUNG:
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
