"""What becomes of a job whose task server has ended."""

from __future__ import annotations

from dataclasses import dataclass

from tinker_actors.scheduler.job_folder import Outcome
from tinker_actors.scheduler.job_records import Job
from tinker_actors.scheduler.states import JobState, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a failed attempt is followed by another one, from the job's last checkpoint.

    Attributes:
        retries: Attempts after the first that failed, until somebody resumes the job.
        backoff: Seconds before the first of them; doubled with each.
        backoff_max: Seconds at most.
    """

    retries: int = 2
    backoff: float = 1.0
    backoff_max: float = 60.0

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"retry.retries is {self.retries}; at least 0 is needed")
        if self.backoff < 0 or self.backoff_max < 0:
            raise ValueError(
                f"retry.backoff is {self.backoff} and backoff_max {self.backoff_max}; neither may be negative"
            )

    def delay(self, failures: int) -> float:
        """Seconds to wait after so many failures."""
        return min(self.backoff * 2 ** (failures - 1), self.backoff_max) if failures else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Where a job goes.

    Attributes:
        state: Its next state.
        reason: Why.
        detail: The same in words.
    """

    state: JobState
    reason: Reason
    detail: str = ""


def judge(
    job: Job,
    outcome: Outcome | None,
    *,
    ended: str,
    code: int | None,
    stopped: Reason | None,
    retry: RetryPolicy,
    excess: str | None = None,
) -> Verdict:
    """Decide what becomes of a job.

    Args:
        job: As it stands.
        outcome: What its task server said of this attempt; None if nothing.
        ended: How the process ended, in words.
        code: Its exit status, negative for a signal; None if it isn't known.
        stopped: Why the scheduler stopped it; None if it didn't.
        retry: How often failed attempts are repeated.
        excess: By how much it held more memory than it may, in words; None if it didn't.
    """
    if outcome is not None and outcome.succeeded:  # even if it was to be stopped: it was faster
        return Verdict(state=JobState.SUCCEEDED, reason=Reason.FINISHED)
    if job.state is JobState.CANCELLING:
        return Verdict(state=JobState.CANCELLED, reason=Reason.CANCEL_DONE)
    if outcome is None and excess is not None:  # another attempt would come to the same
        return Verdict(state=JobState.FAILED, reason=Reason.MEMORY, detail=excess)
    if outcome is None and stopped is not None:
        return Verdict(state=JobState.QUEUED, reason=stopped)
    detail = outcome.detail if outcome is not None else ended
    killed = outcome is None and code is not None and code < 0
    if job.state is JobState.STARTING and not killed:
        return Verdict(state=JobState.FAILED, reason=Reason.START_FAILED, detail=detail)
    reason = Reason.CRASHED if outcome is None else Reason.ERROR
    again = (outcome is None or outcome.again) and job.failures < retry.retries
    return Verdict(state=JobState.QUEUED if again else JobState.FAILED, reason=reason, detail=detail)
