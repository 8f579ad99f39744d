"""What the jobs API takes and gives."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tinker_actors.scheduler.job_records import Job, Transition
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.states import JobKind, JobState, Reason

_MOST = 2**53


class Submission(BaseModel):
    """A job to run."""

    model_config = ConfigDict(extra="forbid")

    config: dict[str, Any]
    """As `tinker-actors run` takes it in TOML. Its `output` is not used."""
    priority: int = Field(default=0, ge=-1000, le=1000)
    """Higher ones go first; what is below 0 makes way for others."""
    devices: int = Field(default=0, ge=0, le=_MOST)
    """Accelerators that it is to have."""
    memory: int = Field(default=0, ge=0, le=_MOST)
    """Bytes of the host's memory that it may use; it fails beyond them. 0 is no bound."""
    key: str | None = Field(default=None, min_length=1, max_length=200)
    """Makes the submission repeatable: a second one with the same key gives the first one's job."""


class ResourcesBody(BaseModel):
    """An amount of each resource."""

    devices: int
    memory: int
    adapter_slots: int
    cpu_workers: int

    @classmethod
    def of(cls, amount: Resources) -> ResourcesBody:
        """As JSON has it."""
        return cls(
            devices=amount.devices,
            memory=amount.memory,
            adapter_slots=amount.adapter_slots,
            cpu_workers=amount.cpu_workers,
        )


class JobBody(BaseModel):
    """A job as it stands. Times are in seconds since 1970."""

    id: str
    number: int
    """Of its submission, rising."""
    kind: JobKind
    name: str
    tenant: str
    state: JobState
    reason: Reason
    detail: str
    """The reason in words; may be empty."""
    over: bool
    """Whether nothing more happens to it by itself."""
    priority: int
    need: ResourcesBody
    attempt: int
    """How often it has been started."""
    failures: int
    submitted: float
    started: float | None
    ended: float | None
    config: dict[str, Any]

    @classmethod
    def of(cls, job: Job) -> JobBody:
        """As JSON has it."""
        same = ("id", "number", "kind", "name", "tenant", "state", "reason", "detail", "priority", "attempt")
        times = ("failures", "submitted", "started", "ended")
        return cls(
            **{name: getattr(job, name) for name in (*same, *times)},
            over=job.state.is_over,
            need=ResourcesBody.of(job.need),
            config=dict(job.config),
        )


class JobsBody(BaseModel):
    """A page of jobs, the newest first."""

    jobs: list[JobBody]
    before: int | None
    """What to ask for as `before` to get the next page; None if this is the last one."""


class TransitionBody(BaseModel):
    """One line of a job's log of states."""

    at: float
    attempt: int
    present: JobState | None
    """Where it stood; None at its submission."""
    wanted: JobState
    """Where it went."""
    reason: Reason
    detail: str

    @classmethod
    def of(cls, line: Transition) -> TransitionBody:
        """As JSON has it."""
        return cls(**{name: getattr(line, name) for name in cls.model_fields})


class TransitionsBody(BaseModel):
    """How a job came to where it stands, oldest first."""

    transitions: list[TransitionBody]


class DeletedBody(BaseModel):
    """What is no more."""

    deleted: str


class UploadBody(BaseModel):
    """What was uploaded."""

    upload: str
    """What a configuration calls it by, as in `data.train = "upload:..."`."""
    rows: int
    bytes: int


class KeptUploadBody(BaseModel):
    """An upload that is kept."""

    upload: str
    tenant: str
    bytes: int
    used: float
    """When it was uploaded, or named by a submission if that was later, in seconds since 1970."""
    jobs: list[str]
    """Ids of the jobs that aren't over and name it, for which it can't be deleted."""


class UploadsBody(BaseModel):
    """What is kept, the oldest first."""

    uploads: list[KeptUploadBody]
    bytes: int
    """Of all of them."""
    most: int
    """Bytes that a tenant may have."""
