"""What the gateway remembers when it is started again: sessions, models, samplers and checkpoints, each of a tenant.

Everything that a client names is looked up with its tenant: what is another's looks like what isn't there.
"""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path
from typing import TypeVar

from tinker_actors.errors import ConfigError
from tinker_actors.gateway.caller import Caller
from tinker_actors.gateway.record_kinds import (
    AuditRecord,
    CheckpointRecord,
    DiscardRecord,
    ModelRecord,
    SamplerRecord,
    SessionRecord,
    UsageRecord,
)
from tinker_actors.gateway.refusals import not_found
from tinker_actors.gateway.tables import Table

LIVING = "(expires_at IS NULL OR expires_at > ?)"
"""The condition that a checkpoint hasn't expired; its value is the present time in seconds since the epoch."""

R = TypeVar("R", SessionRecord, ModelRecord, SamplerRecord, CheckpointRecord)


class Records:
    """The records in one SQLite file (WAL), which one process writes.

    Calls block for less than a millisecond, so routes make them directly. What was written survives the process's end
    at any moment; the last few writes may be lost when the machine itself loses power.

    Args:
        path: The file; it is made if it isn't there.

    Raises:
        ConfigError: The file can't be used.

    Attributes:
        sessions: By `session_id`.
        models: By `model_id`.
        samplers: By `sampler_id`.
        checkpoints: By `path`.
        discards: By `handle`, what is to be deleted, and what is being stored.
        usage: What sessions used, by the hour.
        audit: What happened to checkpoints.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            self._connection = sqlite3.connect(path, isolation_level=None)
        except sqlite3.Error as error:
            raise ConfigError(f"the records in {path} can't be opened: {error}") from error
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("PRAGMA busy_timeout = 5000")
            self._open_tables()
            self._lock = _held(Path(f"{path}.lock"), alone=self._give_up_stored)
        except (sqlite3.Error, OSError) as error:
            self._connection.close()
            raise ConfigError(f"the records in {path} can't be used: {error}") from error

    def _open_tables(self) -> None:
        self.sessions = Table(self._connection, SessionRecord, "sessions", index=("tenant",))
        self.models = Table(self._connection, ModelRecord, "models", index=("tenant", "session_id", "inflight"))
        self.samplers = Table(
            self._connection, SamplerRecord, "samplers", index=("tenant", "session_id", "model_id", "handle")
        )
        self.checkpoints = Table(
            self._connection, CheckpointRecord, "checkpoints", index=("tenant", "model_id", "handle", "expires_at")
        )
        self.discards = Table(self._connection, DiscardRecord, "discards")
        self.usage = Table(self._connection, UsageRecord, "usage", index=("tenant", "hour"))
        self.audit = Table(self._connection, AuditRecord, "audit", index=("tenant", "at"))

    def _give_up_stored(self) -> None:
        """Let what those stored who were killed be deleted."""
        self._connection.execute("UPDATE discards SET storing = 0")

    def close(self) -> None:
        """Close the file."""
        self._lock.close()
        self._connection.close()

    @contextmanager
    def together(self) -> Generator[None]:
        """Within it, which is not to wait for anything, all changes are made or none, however the process ends."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:  # whatever it was, no half of it stays
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def session(self, caller: Caller, session_id: str) -> SessionRecord:
        """A session of the caller's tenant.

        Raises:
            RefusalError: There is none of this id that the caller may know of.
        """
        return _known("session", session_id, self.sessions.get(session_id), caller)

    def model(self, caller: Caller, model_id: str) -> ModelRecord:
        """A model of the caller's tenant; errors as of `session`."""
        return _known("model", model_id, self.models.get(model_id), caller)

    def sampler(self, caller: Caller, sampler_id: str) -> SamplerRecord:
        """A sampling session of the caller's tenant; errors as of `session`."""
        return _known("sampler", sampler_id, self.samplers.get(sampler_id), caller)

    def checkpoint(self, caller: Caller, path: str, *, reading: bool = True) -> CheckpointRecord:
        """A checkpoint that the caller may read: its tenant's, or a public one.

        Args:
            caller: Who asks.
            path: Its path.
            reading: Whether it is to be read only; a public one may be changed by its own tenant alone.

        Raises:
            RefusalError: There is none of this path that the caller may know of, or it has expired.
        """
        found = self.checkpoints.get(path)
        if found is not None and found.expires_at is not None and found.expires_at <= time.time():
            found = None
        if found is not None and found.public and reading:
            return found
        return _known("checkpoint", path, found, caller)


def _held(path: Path, alone: Callable[[], None]) -> BufferedWriter:
    """A lock that all who have the records open share.

    Args:
        path: Its file.
        alone: Called where nobody else has them open, before anybody can.
    """
    lock = path.open("ab")
    with contextlib.suppress(OSError):  # somebody has, or the file system has no locks, so that nobody can tell
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone()
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def _known(what: str, name: str, found: R | None, caller: Caller) -> R:
    if found is None or (found.tenant != caller.tenant and not caller.sees_all):
        raise not_found(what, name)
    return found
