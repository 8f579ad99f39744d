"""How a scheduler runs jobs: its queue's rules, what is repeated, how long processes have to end, and what they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.job_records import Job
from tinker_actors.scheduler.queue import Rules
from tinker_actors.scheduler.verdict import RetryPolicy

Command: TypeAlias = Callable[[Job, JobFolder], Sequence[str]]
"""The program and arguments of a job's task server; it is given one more, see `TaskChild`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """How the jobs of a folder are run.

    Attributes:
        rules: How the queue is served.
        retry: How often failed attempts are repeated.
        grace: Seconds that a job's process has to end when it is told to.
        save_grace: Seconds that it has before, to save its present step, when it makes room for another, or in `drain`.
        command: What a job's process is; None for the task server of its configuration.
    """

    rules: Rules = field(default_factory=Rules)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    grace: float = 10.0
    save_grace: float = 120.0
    command: Command | None = None
