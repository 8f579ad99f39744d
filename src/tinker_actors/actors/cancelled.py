"""Whose cancellation a `CancelledError` is."""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Whether somebody cancelled the current task.

    A `CancelledError` in a task that nobody cancelled comes from user code that awaited something cancelled: that is a
    failure like others, and must not pass for the cancellation of the task.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
