"""Checks and times the residual's kernels on a GPU, in one table: `benchmarks/gpu_check.sh` runs all of it.

python -m benchmarks.gpu_check              # checks, then timings
python -m benchmarks.gpu_check --quick      # checks only, on small matrices, as for compute-sanitizer
python -m benchmarks.gpu_check --dry        # the checks through the tests' emulator, where there is no GPU
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from benchmarks import table
from benchmarks.gpu.correctness import Finding, findings
from benchmarks.gpu.timings import Timing, backward_timings, timings
from tinker_actors.kernels.backend import backend_for, kernels_on_cpu

_EMULATOR = Path(__file__).resolve().parent.parent / "tests" / "kernels"


# of a forward pass's traffic: a part of the backward pass reads one matrix, or reads and writes it
_PARTS = {"dS and dB": 1 / 3, "dA": 1 / 3, "dX": 2 / 3}


@contextlib.contextmanager
def emulated() -> Iterator[torch.device]:
    """CPU tensors, whose kernels the tests' emulator runs."""
    sys.path.insert(0, str(_EMULATOR))
    try:
        from emulator import Emulator  # pyright: ignore[reportMissingImports]

        with kernels_on_cpu(Emulator()):
            yield torch.device("cpu")
    finally:
        sys.path.remove(str(_EMULATOR))


def missing() -> str | None:
    """What must be there first, or None."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built for CPUs; a build for CUDA 13 is needed"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU here; its driver must be for CUDA {torch.version.cuda} or newer"
    if backend_for(torch.device("cuda")) is None:
        return "CuPy is not installed: pip install 'tinker-actors[gpu]'"
    return None


def show_findings(found: Iterable[Finding]) -> bool:
    """Print each as it comes; whether all are good."""
    good = True
    for finding in found:
        print(f"{'ok  ' if finding.good else 'BAD '}  {finding.check:78s}  {finding.shown}", flush=True)
        good = good and finding.good
    return good


def show_timings(measured: Iterable[Timing]) -> list[table.Row]:
    """Print each as it comes, beside its floor; the same as rows."""
    titles = f"{'system':26s} {'us':>8s} {'low':>8s} {'high':>8s} {'floor':>8s} {'of it':>6s}"
    print(f"{'case':16s} {'rows':>5s} {'adapters':>8s} {'rank':>4s}  {titles}")
    rows: list[table.Row] = []
    for timing in measured:
        case = timing.case
        head = f"{case.name:16s} {case.rows:5d} {case.adapters:8d} {case.rank:4d}  {timing.system:26s}"
        if not timing.rounds:
            print(f"{head} left out: {timing.why}", flush=True)
            continue
        name = f"{case.name} {case.rows}/{case.adapters} r{case.rank}"
        row = table.summarise(name, timing.system, "us", timing.rounds)
        rows.append(row)
        figures = f"{row.median:8.1f} {row.low:8.1f} {row.high:8.1f}"
        if timing.system == "base product":
            print(f"{head} {figures}", flush=True)
            continue
        floor = case.floor * _PARTS.get(timing.system, 1.0)
        of_part = f"floor of {timing.system}" if timing.system in _PARTS else "floor"
        if (lowest := table.summarise(name, of_part, "us", [floor])) not in rows:
            rows.append(lowest)
        print(f"{head} {figures} {floor:8.1f} {floor / row.median:6.0%}", flush=True)
    return rows


def main() -> int:
    """Run what the arguments ask for; 1 where a check found something wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small matrices and no timings")
    parser.add_argument("--dry", action="store_true", help="through the emulator, small and without timings")
    parser.add_argument("--json", type=Path, help="write the timings there")
    options = parser.parse_args()
    begun = time.monotonic()
    if options.dry:
        with emulated() as device:
            good = show_findings(findings(device, small=True))
    else:
        if lacking := missing():
            print(f"{lacking}. --dry runs the checks through the emulator.", file=sys.stderr)
            return 2
        device = torch.device("cuda", torch.cuda.current_device())
        print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}")
        good = show_findings(findings(device, small=options.quick))
        if not options.quick:
            print()
            rows = show_timings(timings(device)) + show_timings(backward_timings(device))
            if options.json:
                table.save(rows, options.json)
    print(f"{'all good' if good else 'SOMETHING IS WRONG'} after {time.monotonic() - begun:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
