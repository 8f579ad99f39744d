"""How the learning rate changes over a run. Loads no torch."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def scheduled(schedule: Schedule, peak: float, *, step: int, total: int, warmup: int = 0, floor: float = 0.0) -> float:
    """The learning rate of a step.

    It rises linearly to `peak` over the warm-up steps, whose last one has it, then follows the schedule to
    `floor` * `peak`, which it would reach one step past the last.

    >>> [round(scheduled("linear", 1.0, step=step, total=6, warmup=2), 2) for step in range(1, 7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]

    Args:
        schedule: `constant` stays; `linear` falls evenly; `cosine` along half a period (Loshchilov and Hutter 2017,
            eq. 5, without restarts).
        peak: The highest rate.
        step: Counted from 1.
        total: Steps of the whole run.
        warmup: Steps over which the rate rises.
        floor: The share of `peak` that is never undercut.
    """
    if step <= warmup:
        return peak * step / warmup
    if schedule == "constant":
        return peak
    done = min(1.0, (step - warmup - 1) / max(total - warmup, 1))
    left = 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return peak * (floor + (1.0 - floor) * left)
