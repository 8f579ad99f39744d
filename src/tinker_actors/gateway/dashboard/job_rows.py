"""A job as the page shows it: what is known of it, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tinker_actors.gateway.dashboard.metrics_file import last_record
from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.job_records import Job, Transition
from tinker_actors.scheduler.run_folder import RunFolder
from tinker_actors.scheduler.states import TRANSITIONS, JobState

_HEADLINE = ("reward", "loss")


def row(job: Job, folder: JobFolder) -> dict[str, Any]:
    """A job as one of many. Reads the end of its metrics."""
    return {
        "id": job.id,
        "number": job.number,
        "kind": job.kind.value,
        "name": job.name,
        "tenant": job.tenant,
        "priority": job.priority,
        "state": job.state.value,
        "reason": job.reason.value,
        "detail": job.detail,
        "attempt": job.attempt,
        "submitted": job.submitted,
        "started": job.started,
        "ended": job.ended,
        "moved": job.moved,
        "can_cancel": not job.state.is_over and job.state is not JobState.CANCELLING,
        "can_resume": job.state.is_over and JobState.QUEUED in TRANSITIONS[job.state],
        "can_delete": job.state.is_over,
        "progress": _progress(job, folder) if job.started is not None else None,
    }


def whole(job: Job, folder: JobFolder, config: Mapping[str, Any], transitions: Sequence[Transition]) -> dict[str, Any]:
    """A job by itself: with its configuration as it was submitted, what it holds, and how it came to where it is."""
    return {
        **row(job, folder),
        "config": config,
        "need": asdict(job.need),
        "devices": list(job.devices),
        "failures": job.failures,
        "transitions": [
            {
                "at": line.at,
                "attempt": line.attempt,
                "present": line.present.value if line.present else None,
                "wanted": line.wanted.value,
                "reason": line.reason.value,
                "detail": line.detail,
            }
            for line in transitions
        ],
    }


def _progress(job: Job, folder: JobFolder) -> dict[str, Any]:
    """The last step, how many steps and epochs there are to be (None if that isn't known before), and its measure."""
    record = last_record(RunFolder(folder.run).metrics) or {}
    trainer: dict[str, Any] = job.config.get("trainer", {})
    step, steps = record.get("step", 0), trainer.get("steps")
    epochs = trainer.get("epochs")
    share = step / steps if steps else None
    if "epoch" in record and epochs:  # supervised: whichever ends first
        share = max(share or 0.0, record["epoch"] / epochs)
    if job.state is JobState.SUCCEEDED:
        share = 1.0
    headline = next(({"metric": name, "value": record[name]} for name in _HEADLINE if name in record), None)
    share = None if share is None else min(share, 1.0)
    return {"step": step, "steps": steps, "epochs": epochs, "share": share, "headline": headline}
