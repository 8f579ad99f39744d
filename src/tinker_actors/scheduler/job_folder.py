"""A job's folder: what its task server is given and leaves behind, and the lock that keeps attempts apart."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from tinker_actors.actors.exits import end_of
from tinker_actors.scheduler.run_folder import write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a task server says at its end.

    Attributes:
        attempt: Which attempt it was.
        succeeded: Whether the job is done.
        detail: What went wrong; empty if nothing did.
        again: Whether another attempt could do better.
    """

    attempt: int
    succeeded: bool
    detail: str = ""
    again: bool = True


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Paths within a job's folder."""

    root: Path

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.root / "run"

    @property
    def log(self) -> Path:
        """What the job's processes printed, of all attempts."""
        return self.root / "output.log"

    @property
    def request(self) -> Path:
        """What to run."""
        return self.root / "job.json"

    @property
    def outcome(self) -> Path:
        """What the last attempt said at its end."""
        return self.root / "outcome.json"

    @property
    def lock(self) -> Path:
        """Held by a task server as long as it lives."""
        return self.root / "lock"

    def prepare(self, config: Mapping[str, Any]) -> None:
        """Make the folder and write what is to be run; again, and nothing changes."""
        self.root.mkdir(parents=True, exist_ok=True)
        write_atomically(self.request, json.dumps(config))

    def load_request(self) -> dict[str, Any]:
        """The job's configuration as plain data."""
        return json.loads(self.request.read_text())

    def save_outcome(self, outcome: Outcome) -> None:
        """Say how it ended; durable."""
        write_atomically(self.outcome, json.dumps(asdict(outcome)))

    def outcome_of(self, attempt: int) -> Outcome | None:
        """What an attempt said at its end; None if it said nothing."""
        try:
            outcome = Outcome(**json.loads(self.outcome.read_text()))
        except FileNotFoundError:
            return None
        return outcome if outcome.attempt == attempt else None

    def tail(self, size: int = 2048) -> str:
        """The end of what the job's processes printed, at most `size` bytes of it."""
        return end_of(self.log, size).strip()


def try_lock(path: Path) -> int | None:
    """Take the lock that a file is, for this process and those that inherit the descriptor.

    Returns:
        A descriptor that holds it until all its copies are closed; None if somebody else holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def wait_for_lock(path: Path) -> None:
    """Block this thread until nobody holds a lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def sign_lock(path: Path) -> None:
    """Write down that this process holds a lock."""
    path.write_text(json.dumps([os.getpid(), psutil.Process().create_time()]))


def kill_holder(path: Path) -> None:
    """Kill the process that signed a lock, with its group, if it still is that process."""
    try:
        pid, born = json.loads(path.read_text())
        if psutil.Process(pid).create_time() != born:
            return
    except (ValueError, psutil.Error, OSError):
        return  # not signed, or gone
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
