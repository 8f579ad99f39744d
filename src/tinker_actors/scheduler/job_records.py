"""What the job store takes and gives: a request, a job as it stands, a line of its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.states import JobKind, JobState, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What is submitted.

    Attributes:
        kind: What the job does.
        name: For people.
        config: Its configuration as plain data.
        directory: What paths in the configuration are relative to.
        need: Resources that it holds while it runs.
        tenant: Whose it is.
        priority: Higher ones go first.
        key: Makes a submission idempotent: the second one with the same key of a tenant gives the first one's job.
    """

    kind: JobKind
    name: str
    config: Mapping[str, Any]
    directory: str
    need: Resources
    tenant: str = "local"
    priority: int = 0
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it stands.

    Attributes:
        id: Unguessable, unique.
        number: Of its submission, rising.
        kind: What it does.
        name: For people.
        tenant: Whose it is.
        priority: Higher ones go first.
        need: Resources that it holds while it runs.
        config: Its configuration as plain data.
        directory: What paths in the configuration are relative to.
        state: Where it stands.
        reason: Why it is there.
        detail: The same in words; may be empty.
        attempt: How often it has been started; the fencing token of the present attempt.
        failures: Attempts that failed since it was submitted or resumed.
        devices: Numbers of the devices that its last attempt held.
        start: The number of its last start among all jobs' starts; 0 if it was never started.
        since: How many starts there had been when it was submitted.
        submitted: Seconds since 1970.
        started: When it was first started; None if it never was.
        ended: When it was over; None if it isn't.
        moved: The number of its last move among all jobs' moves: the higher one of two views of a job is the newer.
        deleted: Whether it is no more; so only who follows jobs hears of it, once.
    """

    id: str
    number: int
    kind: JobKind
    name: str
    tenant: str
    priority: int
    need: Resources
    config: Mapping[str, Any] = field(repr=False)
    directory: str
    state: JobState
    reason: Reason
    detail: str
    attempt: int
    failures: int
    devices: tuple[int, ...]
    start: int
    since: int
    submitted: float
    started: float | None
    ended: float | None
    moved: int
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Which jobs somebody wants to see, the newest first.

    Attributes:
        states: In one of these; in any if empty.
        kinds: Of one of these; of any if empty.
        text: Part of the name, in letters of either case, or of the id.
        before: Only those whose number is lower: how to go on from the last one of a page.
        limit: How many at most.
    """

    states: tuple[JobState, ...] = ()
    kinds: tuple[JobKind, ...] = ()
    text: str = ""
    before: int | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One line of a job's log.

    Attributes:
        at: Seconds since 1970.
        attempt: Which attempt of the job it was about.
        present: Where it stood; None at its submission.
        wanted: Where it went.
        reason: Why.
        detail: The same in words; may be empty.
    """

    at: float
    attempt: int
    present: JobState | None
    wanted: JobState
    reason: Reason
    detail: str
