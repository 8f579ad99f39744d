"""One system in a process of its own: reads `[case, size, rows]` lines, writes one JSON line for each.

    python -m benchmarks.training_peers.driver SYSTEM MODEL THREADS

A system's module defines `System(model, threads)`, with a method per case that takes the size and the rows of a
padded micro-batch, prepares, and returns the tokens of a step and a function that does the step (or does it and returns
its seconds, by both clocks, itself).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.training_peers import CASES, SYSTEMS

Seconds = tuple[float, float]
"""Of the clock on the wall, and of the processor."""


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    name, model, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    module, packages = SYSTEMS[name]
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    print(json.dumps({"missing": missing}), file=answers, flush=True)
    if missing:
        return
    import torch

    torch.set_num_threads(threads)
    system: Any = None
    for line in sys.stdin:
        case, size, rows = json.loads(line)
        assert case in CASES
        try:
            system = system or importlib.import_module(f"benchmarks.training_peers.{module}").System(model)
            tokens, step = getattr(system, case)(size, rows)
            (wall, processor), peak = measured(step)
            answer: Any = {"tokens": tokens, "wall": wall, "processor": processor, "peak": peak}
        except Exception:  # the boundary around other people's code: the run goes on without this figure
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


def measured(step: Callable[[], Seconds | None]) -> tuple[Seconds, float]:
    """Seconds of a step and the process's peak memory during it in MB."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    wall, processor = time.perf_counter(), time.process_time()
    own = step()
    found = own or (time.perf_counter() - wall, time.process_time() - processor)
    return found, _peak()


def _peak() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no VmHWM; the peak of memory is measured on Linux only")


if __name__ == "__main__":
    main()
