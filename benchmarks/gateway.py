"""The gateway, by the official Tinker client: what sharing a base model saves its clients, and what a call costs.

    python -m benchmarks.gateway [--quick] [--json FILE] [--rounds N] [--cases A,B] [--seconds S]

`eight_clients` has eight clients train an adapter each, one after another and then all at once, with small batches, on
SmolLM2-135M from the cache, else on random weights of its shape (`--quick`: of a smaller one). It fails if an adapter
doesn't end with the same bits both ways.

`overhead` is what a call takes through the service beyond the same call to the trainer's process without it: by plain
HTTP (`tinker_actors`), and by the official client (`tinker`), whose own work comes on top. `load` is 200 sampling and
20 training clients (`--quick`: 40 and 4), of which a fifth vanishes amid requests or reads slowly, for `--seconds`. The
service is `tinker-actors serve`, with one thread for each model.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import table
from benchmarks.gateway_cases import load, overhead, together
from benchmarks.gateway_cases.service import service
from benchmarks.training import model_directory

OURS = "tinker_actors"
ALONE = "one_after_another"
CASES = ("eight_clients", "overhead", "load")
ROUNDS, QUICK_ROUNDS = 5, 2


class Run:
    """All rounds of the chosen cases."""

    def __init__(self, *, rounds: int, quick: bool, seconds: float) -> None:
        self.rounds, self.quick, self.seconds = rounds, quick, seconds
        self.rows: list[table.Row] = []
        self.ratios: dict[tuple[str, str], float] = {}

    def eight_clients(self, scratch: Path) -> None:
        """Eight clients one after another, and at once."""
        model, what = model_directory(scratch, small=self.quick)
        print(f"eight_clients: {what}", flush=True)
        size = {"steps": 4 if self.quick else 6, "rows": 1, "tokens": 8}
        taken: dict[str, list[together.Taken]] = {ALONE: [], OURS: []}
        with service(model, scratch) as running:
            together.measure(running, **{**size, "steps": 1})  # warms up
            for _ in range(self.rounds):
                alone, at_once, same = together.measure(running, **size)
                if not same:
                    raise SystemExit("eight_clients: an adapter ended with other bits in company than alone")
                taken[ALONE].append(alone)
                taken[OURS].append(at_once)
        print("eight_clients: every adapter ended with the same bits both ways", flush=True)
        for name, unit in (("wall", "s"), ("processor", "cpu s")):
            values = {system: [getattr(round_, name) for round_ in found] for system, found in taken.items()}
            case = f"eight_clients_{name}"
            self.rows += [table.summarise(case, system, unit, found) for system, found in values.items()]
            self.ratios[case, ALONE] = table.paired_ratio(values[OURS], values[ALONE])

    def overhead(self, scratch: Path) -> None:
        """Calls through the service, and without it."""
        calls = 60 if self.quick else 200
        added: dict[tuple[str, str], list[float]] = {}
        with service("tiny-llama", scratch) as running:
            for number in range(self.rounds):
                ways = {"tinker": overhead.by_the_client(running, calls), OURS: overhead.by_plain_http(running, calls)}
                without = overhead.in_process("tiny-llama", scratch / str(number), calls).medians()
                for system, found in ways.items():
                    for name, value in found.medians().items():
                        added.setdefault((f"overhead_{name}", system), []).append(value - without[name])
        for (case, system), values in sorted(added.items()):
            unit = "cpu ms" if case.endswith("processor") else "ms"
            self.rows.append(table.summarise(case, system, unit, values))

    def load(self, scratch: Path) -> None:
        """Many clients at a time."""
        samplers, trainers = (40, 4) if self.quick else (200, 20)
        with service("tiny-llama", scratch) as running:
            seen = asyncio.run(load.measure(running, samplers=samplers, trainers=trainers, seconds=self.seconds))
        print(f"load: statuses {seen.statuses}, failures {sorted(seen.failed) or 'none'}", flush=True)
        figures = {
            "load_server_errors": ("answers", float(seen.server_errors)),
            "load_p99_admission": ("ms", seen.p99_admission),
            "load_p50_admission": ("ms", statistics.median(seen.admission) * 1e3),
            "load_memory_growth": ("ratio", seen.growth),
            "load_samples": ("1/s", seen.samples / self.seconds),
            "load_optimizer_steps": ("1/s", seen.steps / self.seconds),
        }
        self.rows += [table.summarise(case, OURS, unit, [value]) for case, (unit, value) in figures.items()]


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gateway-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(prog="benchmarks.gateway", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small enough to run often")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--seconds", type=float, help="how long the load lasts (300; with --quick 30)")
    options = parser.parse_args(arguments)
    chosen = options.cases.split(",")
    if unknown := set(chosen) - set(CASES):
        parser.error(f"--cases has {sorted(unknown)}; {', '.join(CASES)} are there")
    os.environ.setdefault("TINKER_API_KEY", "tml-benchmark")
    run = Run(
        rounds=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
        quick=options.quick,
        seconds=options.seconds or (30.0 if options.quick else 300.0),
    )
    for case in chosen:
        with _scratch() as scratch:
            getattr(run, case)(scratch)
    print(table.render(run.rows, run.ratios))
    if options.json:
        table.save(run.rows, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
