"""What a job is and where it may stand: kinds, states, reasons, and the one table of legal transitions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from tinker_actors.errors import JobStateError


class JobKind(Enum):
    """What a job does."""

    RL_LORA = "rl-lora"
    RL_FULL = "rl-full"
    SFT = "sft"
    EVALUATION = "evaluation"
    INFERENCE = "inference"


class JobState(Enum):
    """Where a job stands."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to the job by itself."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)

    @property
    def holds_resources(self) -> bool:
        """Whether a process of the job may be alive."""
        return self in (JobState.STARTING, JobState.RUNNING, JobState.CANCELLING)


class Reason(Enum):
    """Why a job went to the state that it is in."""

    SUBMITTED = "submitted"
    DISPATCHED = "dispatched"  # its resources are allocated and its task server is started
    STARTED = "started"  # its task server has loaded what it needs
    FINISHED = "finished"
    START_FAILED = "start failed"  # its task server could not be started, or what the job names can't work
    ERROR = "error"  # its task server told of an error
    MEMORY = "memory"  # its processes held more than its request allows
    CRASHED = "crashed"  # its task server ended without a word
    PREEMPTED = "pre-empted"  # stopped in favour of a job of higher priority
    INTERRUPTED = "interrupted"  # the scheduler ended
    CANCEL_ASKED = "cancel asked"
    CANCEL_DONE = "cancel done"
    RESUME_ASKED = "resume asked"
    IMPOSSIBLE = "impossible"  # it can no longer fit


TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.STARTING, JobState.CANCELLED, JobState.FAILED}),
    JobState.STARTING: frozenset(
        {JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED, JobState.QUEUED, JobState.CANCELLING}
    ),
    JobState.RUNNING: frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.QUEUED, JobState.CANCELLING}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED, JobState.SUCCEEDED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset({JobState.QUEUED}),
    JobState.CANCELLED: frozenset({JobState.QUEUED}),
}
"""Where each state may lead. To stay is always legal and changes nothing."""


def moves(job: str, present: JobState, wanted: JobState) -> bool:
    """Whether a transition changes anything.

    Args:
        job: The job's id, for the error.
        present: Where it stands.
        wanted: Where it is to go.

    Returns:
        False if it is there already.

    Raises:
        JobStateError: It can't go there.
    """
    if present is wanted:
        return False
    if wanted in TRANSITIONS[present]:
        return True
    legal = ", ".join(sorted(state.value for state in TRANSITIONS[present]))
    then = f"from there it goes to: {legal}" if legal else "it stays that"
    raise JobStateError(f"job {job} is {present.value} and can't become {wanted.value}; {then}")
