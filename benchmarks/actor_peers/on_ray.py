"""Ray: an actor is a process; a cluster of this machine alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import ray

from benchmarks.actor_peers import measure

_state: dict[str, Any] = {}


def _counter() -> Any:
    if "counter" not in _state:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 30)

        class Counter:  # defined here so that it travels by value
            def __init__(self) -> None:
                self.n = 0

            def add(self, n: int) -> int:
                self.n += n
                return self.n

            def take(self, data: Any) -> int:
                return data.nbytes

        _state["counter"] = ray.remote(Counter).remote()
        ray.get(_state["counter"].add.remote(1))
    return _state["counter"]


async def _p50(count: int) -> float:
    counter = _counter()
    return measure.p50_blocking(lambda: ray.get(counter.add.remote(1)), count)


async def _pipelined(count: int) -> float:
    counter = _counter()

    def wave() -> None:
        ray.get([counter.add.remote(1) for _ in range(measure.WORKERS)])

    waves = max(1, count // measure.WORKERS)
    return 1e6 / measure.mean_blocking(wave, waves) * measure.WORKERS


async def _cpu(count: int) -> float:
    _counter()
    waves = max(1, count // measure.WORKERS)
    return await measure.cpu_per_operation(lambda: _pipelined(count), waves * measure.WORKERS, measure.children())


def _one_way(size: int, *, in_store: bool) -> Callable[[int], Awaitable[float]]:
    async def case(count: int) -> float:
        counter = _counter()
        data: Any = np.ones(size, np.uint8)
        if in_store:
            data = ray.put(data)
        send: Callable[[], object] = lambda: ray.get(counter.take.remote(data))  # noqa: E731
        send()
        return size / (measure.p50_blocking(send, count) * 1e3)

    return case


async def stop() -> None:
    """End the cluster."""
    if _state:
        ray.shutdown()


CASES = {
    "ask_p50_ipc": _p50,
    "asks_pipelined_256_ipc": _pipelined,
    "cpu_per_ask_ipc": _cpu,
    "oneway_1mib": _one_way(measure.MIB, in_store=False),
    "oneway_64mib": _one_way(64 * measure.MIB, in_store=False),
    "oneway_64mib_in_arena": _one_way(64 * measure.MIB, in_store=True),
}
