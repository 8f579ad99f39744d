"""The systems that `benchmarks.actors` compares, one module each, and what a case is."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

SYSTEMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tinker_actors": ("ours", ("tinker_actors",)),
    "ray": ("on_ray", ("ray",)),
    "xoscar": ("on_xoscar", ("xoscar",)),
    "xoscar_local": ("on_xoscar_local", ("xoscar",)),
    "pykka": ("on_pykka", ("pykka",)),
    "pyzmq": ("on_pyzmq", ("zmq",)),
    "pyzmq_pair": ("on_pyzmq_pair", ("zmq",)),
    "asyncio_queue": ("on_queues", ()),
    "memcpy": ("on_memcpy", ("numpy",)),
}
"""Each system's module here and what must be installed for it. `pyzmq*`, `asyncio_queue`, `memcpy` are floors."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure.

    Attributes:
        unit: of the figure.
        size: operations of a round.
        quick: operations of a round of `--quick`.
    """

    unit: str
    size: int
    quick: int


CASES: dict[str, Case] = {
    "ask_p50_ipc": Case("us", 3000, 800),
    "asks_pipelined_256_ipc": Case("asks/s", 40960, 10240),
    "cpu_per_ask_ipc": Case("us", 40960, 10240),
    "ask_p50_local": Case("us", 10000, 3000),
    "asks_pipelined_256_local": Case("asks/s", 102400, 25600),
    "cpu_per_ask_local": Case("us", 102400, 25600),
    "oneway_1mib": Case("GB/s", 100, 25),
    "oneway_64mib": Case("GB/s", 7, 3),
    "oneway_64mib_in_arena": Case("GB/s", 7, 3),
    "barrier_1000_local": Case("ms", 20, 5),
    "barrier_1000_ipc": Case("ms", 20, 5),  # four processes besides the asker's
    "spawn_10000_local": Case("us", 10000, 10000),
    "spawn_10000_local_memory": Case("KB", 10000, 2000),
    "asks_pipelined_256_tcp": Case("asks/s", 40960, 10240),
    "asks_pipelined_256_tcp_curve": Case("asks/s", 40960, 10240),
    "kill_to_error_ipc": Case("ms", 3, 1),
}

SLOW = {"ray": 0.05, "xoscar": 0.3, "pykka": 0.3}
"""The share of a case's operations that a slow system does, so that a round takes about as long for everyone."""


def missing(system: str) -> str | None:
    """The package that `system` needs and that is not installed, or None."""
    return next((name for name in SYSTEMS[system][1] if importlib.util.find_spec(name) is None), None)
