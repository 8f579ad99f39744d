"""The floor of moving bytes: a copy into memory that has been written before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np

from benchmarks.actor_peers import measure


def _copy(size: int) -> Callable[[int], Awaitable[float]]:
    async def case(count: int) -> float:
        source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
        np.copyto(target, source)
        return size / (measure.p50_blocking(lambda: np.copyto(target, source), count) * 1e3)

    return case


CASES = {"oneway_1mib": _copy(measure.MIB), "oneway_64mib": _copy(64 * measure.MIB)}
