"""Every job that a scheduler was ever given, in SQLite: what it is, where it stands, and how it came there.

A call is one transaction that is on disk when it returns. Whoever kills the process leaves the state before or after a
call, never one between. An attempt's number is a fencing token: what a former attempt reports changes nothing.
"""

from __future__ import annotations

import json
import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tinker_actors.errors import JobError, JobStateError, UnknownJobError
from tinker_actors.scheduler.job_records import Job, JobQuery, JobRequest, Transition
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.states import JobKind, JobState, Reason, moves

logger = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    key TEXT,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    config TEXT NOT NULL,
    directory TEXT NOT NULL,
    priority INTEGER NOT NULL,
    need TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    start INTEGER NOT NULL DEFAULT 0,
    since INTEGER NOT NULL,
    devices TEXT NOT NULL DEFAULT '[]',
    submitted REAL NOT NULL,
    started REAL,
    ended REAL,
    UNIQUE (tenant, key)
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, number);
CREATE INDEX IF NOT EXISTS jobs_by_tenant ON jobs (tenant, state);
CREATE TABLE IF NOT EXISTS transitions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL REFERENCES jobs (id),
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    present TEXT,
    wanted TEXT NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS transitions_by_job ON transitions (job, number);
CREATE TABLE IF NOT EXISTS deleted (start INTEGER NOT NULL);
"""
_VERSION = 1
_PLAIN = (
    *("id", "number", "name", "tenant", "priority", "directory", "detail", "attempt", "failures", "start", "since"),
    *("submitted", "started", "ended", "moved"),
)
_MOVED = "(SELECT MAX(number) FROM transitions WHERE job = jobs.id) AS moved"
_JOBS = f"SELECT *, {_MOVED} FROM jobs"
_OUTLINES = (
    "SELECT id, number, name, tenant, priority, directory, detail, attempt, failures, start, since, submitted, started,"
    f" ended, kind, state, reason, need, devices, '{{}}' AS config, {_MOVED} FROM jobs"
)
_STARTS = "SELECT COALESCE(MAX(start), 0) FROM (SELECT start FROM jobs UNION ALL SELECT start FROM deleted)"


class JobStore:
    """The jobs in a file. Of one thread; other processes may read beside it.

    Args:
        path: The database; made if it isn't there.
        on_change: Called with a job that was added, has moved or was deleted, once that is on disk. It must not raise.

    Raises:
        JobError: The file can't be used.
    """

    def __init__(self, path: Path, *, on_change: Callable[[Job], None] = lambda _: None) -> None:
        self.path = path
        self._on_change = on_change
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=10.0)
        except sqlite3.Error as error:
            raise JobError(f"job store {path} can't be opened: {error}") from error
        self._db.row_factory = sqlite3.Row
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")  # in WAL, NORMAL may lose the last commits with the machine
            self._db.execute("PRAGMA foreign_keys = ON")
            with self._transaction():
                version = self._db.execute("PRAGMA user_version").fetchone()[0]
                if version not in (0, _VERSION):
                    raise JobError(f"job store {path} has version {version}; this program reads version {_VERSION}")
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {_VERSION}")
        except sqlite3.Error as error:
            self._db.close()
            raise JobError(f"job store {path} can't be used: {error}") from error
        except JobError:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def add(self, request: JobRequest) -> Job:
        """Take a job into the queue; with a `key` that was used before, give the job that was taken then."""
        with self._transaction():
            if request.key is not None and (known := self.of_key(request.tenant, request.key)) is not None:
                return known
            now = time.time()
            job = f"job-{secrets.token_hex(8)}"
            values = {
                "id": job,
                "tenant": request.tenant,
                "key": request.key,
                "kind": request.kind.value,
                "name": request.name,
                "config": json.dumps(request.config),
                "directory": request.directory,
                "priority": request.priority,
                "need": json.dumps(asdict(request.need)),
                "state": JobState.QUEUED.value,
                "reason": Reason.SUBMITTED.value,
                "detail": "",
                "since": self._db.execute(_STARTS).fetchone()[0],
                "submitted": now,
            }
            columns, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
            self._db.execute(f"INSERT INTO jobs ({columns}) VALUES ({marks})", values)
            self._log(job, 0, now, None, JobState.QUEUED, Reason.SUBMITTED, "")
            added = self.get(job)
        self._on_change(added)
        return added

    def get(self, job: str) -> Job:
        """A job.

        Raises:
            UnknownJobError: There is none with this id.
        """
        row = self._db.execute(f"{_JOBS} WHERE id = ?", (job,)).fetchone()
        if row is None:
            raise UnknownJobError(f"there is no job {job!r}")
        return _job(row)

    def of_key(self, tenant: str, key: str) -> Job | None:
        """The job that a tenant submitted with a key, if there is one."""
        row = self._db.execute(f"{_JOBS} WHERE tenant = ? AND key = ?", (tenant, key)).fetchone()
        return None if row is None else _job(row)

    def jobs(self, *states: JobState, tenant: str | None = None, outlines: bool = False) -> list[Job]:
        """Jobs in the order of their submission.

        Args:
            states: In which of these states; in any if none is given.
            tenant: Whose; everybody's if None.
            outlines: Leave their configurations empty, which may be large.
        """
        asked = states or tuple(JobState)
        read = _OUTLINES if outlines else _JOBS
        query = f"{read} WHERE state IN ({_marks(asked)}) AND (? IS NULL OR tenant = ?) ORDER BY number"
        rows = self._db.execute(query, (*(state.value for state in asked), tenant, tenant)).fetchall()
        return [_job(row) for row in rows]

    def search(self, query: JobQuery, tenant: str | None = None) -> list[Job]:
        """Jobs that a query asks for, the newest first.

        Args:
            query: Which of them, and how many.
            tenant: Whose; everybody's if None.
        """
        states, kinds = query.states or tuple(JobState), query.kinds or tuple(JobKind)
        found = self._db.execute(
            f"{_JOBS} WHERE state IN ({_marks(states)}) AND kind IN ({_marks(kinds)})"
            " AND (? IS NULL OR tenant = ?) AND (? IS NULL OR number < ?)"
            " AND (instr(lower(name), lower(?)) OR instr(id, ?)) ORDER BY number DESC LIMIT ?",
            (
                *(state.value for state in states),
                *(kind.value for kind in kinds),
                *(tenant, tenant, query.before, query.before, query.text, query.text, query.limit),
            ),
        )
        return [_job(row) for row in found]

    def counts(self, tenant: str | None = None) -> dict[JobState, int]:
        """How many jobs are in each state, of a tenant or of all."""
        mine = ("", ()) if tenant is None else ("WHERE tenant = ?", (tenant,))
        found = dict(self._db.execute(f"SELECT state, COUNT(*) FROM jobs {mine[0]} GROUP BY state", mine[1]).fetchall())
        return {state: found.get(state.value, 0) for state in JobState}

    def transitions(self, job: str) -> list[Transition]:
        """A job's log, oldest first."""
        rows = self._db.execute("SELECT * FROM transitions WHERE job = ? ORDER BY number", (job,)).fetchall()
        return [
            Transition(
                at=row["at"],
                attempt=row["attempt"],
                present=JobState(row["present"]) if row["present"] is not None else None,
                wanted=JobState(row["wanted"]),
                reason=Reason(row["reason"]),
                detail=row["detail"],
            )
            for row in rows
        ]

    @property
    def starts(self) -> int:
        """How many starts there have been, of all jobs."""
        return self._db.execute(_STARTS).fetchone()[0]

    def begin(self, job: str, devices: Sequence[int] = ()) -> Job:
        """From queued to starting, as a new attempt.

        Args:
            job: Its id.
            devices: Numbers of the devices that the attempt holds.

        Raises:
            JobStateError: The job isn't queued.
        """
        with self._transaction():
            present = self.get(job)
            if not moves(job, present.state, JobState.STARTING):
                return present
            now = time.time()
            self._db.execute(
                f"UPDATE jobs SET attempt = attempt + 1, start = ({_STARTS}) + 1, started = COALESCE(started, ?),"
                " devices = ? WHERE id = ?",
                (now, json.dumps(list(devices)), job),
            )
            moved = self._move(self.get(job), JobState.STARTING, Reason.DISPATCHED, "", now)
        self._on_change(moved)
        return moved

    def move(
        self, job: str, wanted: JobState, reason: Reason, detail: str = "", *, attempt: int | None = None
    ) -> Job | None:
        """Let a job go to another state. To go where it is changes nothing.

        Args:
            job: Its id.
            wanted: The state.
            reason: Why.
            detail: The same in words.
            attempt: Which attempt says so; None for whoever needn't be one.

        Returns:
            The job afterwards; None if a former attempt said so, which changes nothing.

        Raises:
            JobStateError: It can't go there.
            UnknownJobError: There is none with this id.
        """
        with self._transaction():
            present = self.get(job)
            if attempt is not None and attempt != present.attempt:
                logger.info("job %s: attempt %d is over, %s counts no more", job, attempt, wanted.value)
                return None
            if not moves(job, present.state, wanted):
                return present
            moved = self._move(present, wanted, reason, detail, time.time())
        self._on_change(moved)
        return moved

    def delete(self, job: str) -> Job:
        """Forget a job that is over, and its log; how it stood last. Numbers are not used again.

        Raises:
            JobStateError: It isn't over.
            UnknownJobError: There is none with this id.
        """
        with self._transaction():
            present = self.get(job)
            if not present.state.is_over:
                raise JobStateError(f"job {job} is {present.state.value}; only one that is over can be deleted")
            starts = self.starts
            self._db.execute("DELETE FROM transitions WHERE job = ?", (job,))
            self._db.execute("DELETE FROM jobs WHERE id = ?", (job,))
            self._db.execute("DELETE FROM deleted")
            self._db.execute("INSERT INTO deleted (start) VALUES (?)", (starts,))
            logger.info("job %s: deleted (%s)", job, present.state.value)
        gone = replace(present, deleted=True)
        self._on_change(gone)
        return gone

    def _move(self, job: Job, wanted: JobState, reason: Reason, detail: str, now: float) -> Job:
        failed = reason in (Reason.ERROR, Reason.CRASHED, Reason.START_FAILED)
        failures = 0 if reason is Reason.RESUME_ASKED else job.failures + failed
        self._db.execute(
            "UPDATE jobs SET state = ?, reason = ?, detail = ?, failures = ?, ended = ? WHERE id = ?",
            (wanted.value, reason.value, detail, failures, now if wanted.is_over else None, job.id),
        )
        self._log(job.id, job.attempt, now, job.state, wanted, reason, detail)
        return self.get(job.id)

    def _log(
        self,
        job: str,
        attempt: int,
        now: float,
        present: JobState | None,
        wanted: JobState,
        reason: Reason,
        detail: str,
    ) -> None:
        before = present.value if present is not None else None
        self._db.execute(
            "INSERT INTO transitions (job, attempt, at, present, wanted, reason, detail) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (job, attempt, now, before, wanted.value, reason.value, detail),
        )
        logger.info(
            "job %s attempt %d: %s -> %s (%s) %s", job, attempt, before or "new", wanted.value, reason.value, detail
        )

    @contextmanager
    def _transaction(self) -> Generator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:  # interrupted too: a transaction must not stay open
                if self._db.in_transaction:  # a full disk may have ended it already
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise JobError(f"job store {self.path} can't be used: {error}") from error


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" for _ in values)


def _job(row: sqlite3.Row) -> Job:
    plain: dict[str, Any] = {name: row[name] for name in _PLAIN}
    return Job(
        **plain,
        kind=JobKind(row["kind"]),
        state=JobState(row["state"]),
        reason=Reason(row["reason"]),
        need=Resources(**json.loads(row["need"])),
        config=json.loads(row["config"]),
        devices=tuple(json.loads(row["devices"])),
    )
