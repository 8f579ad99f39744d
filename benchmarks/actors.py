"""The actor runtime against Ray, xoscar, Pykka, and the floors beneath it: raw pyzmq, `asyncio.Queue`, memcpy.

    python -m benchmarks.actors [--quick] [--json FILE] [--rounds N] [--cases A,B] [--systems A,B]

Every system runs in a process of its own, on uvloop where it is installed. In each round of a case the systems take
their turns one after another, in an order that rotates; what is printed are medians over the rounds.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import table
from benchmarks.actor_peers import CASES, SLOW, SYSTEMS, missing
from benchmarks.peer_process import PeerProcess

OURS = "tinker_actors"
ROUNDS, QUICK_ROUNDS = 9, 3


class Driver(PeerProcess):
    """One system's process."""

    def __init__(self, system: str) -> None:
        super().__init__(system, [sys.executable, "-m", "benchmarks.actor_peers.driver", system])
        self.cases: set[str] = set(self.read())

    def measure(self, case: str, operations: int) -> float | None:
        """One figure, or None where the system failed; why is kept in `failed`."""
        answer = self.ask(case, operations)
        if answer is None:
            self.cases.discard(case)
            return None
        return float(answer["value"])


class Run:
    """All rounds of the chosen cases."""

    def __init__(self, drivers: Sequence[Driver], *, rounds: int, quick: bool) -> None:
        self.drivers = list(drivers)
        self.rounds = rounds
        self.quick = quick
        self.load: list[float] = []
        self.rows: list[table.Row] = []
        self.ratios: dict[tuple[str, str], float] = {}

    def case(self, name: str) -> None:
        """Every round of one case."""
        case = CASES[name]
        taking = [driver for driver in self.drivers if name in driver.cases]
        values: dict[str, list[float]] = {driver.system: [] for driver in taking}
        for driver in list(taking):  # to warm up, and to find out who can't
            if driver.measure(name, max(1, self._operations(name, driver.system) // 5)) is None:
                taking.remove(driver)
        for number in range(self.rounds):
            self.load.append(os.getloadavg()[0])
            for position in range(len(taking)):
                driver = taking[(number + position) % len(taking)]
                value = driver.measure(name, self._operations(name, driver.system))
                if value is not None:
                    values[driver.system].append(value)
        for system, figures in values.items():
            if not figures:
                continue
            self.rows.append(table.summarise(name, system, case.unit, figures))
            if system != OURS and len(values.get(OURS, ())) == len(figures):
                self.ratios[name, system] = table.paired_ratio(values[OURS], figures)

    def _operations(self, name: str, system: str) -> int:
        case = CASES[name]
        full = case.quick if self.quick else case.size
        if case.unit in ("KB", "GB/s", "ms"):
            return full
        return max(1, int(full * SLOW.get(system, 1.0)))


def machine() -> str:
    """The machine in a line."""
    return f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.actors", description="Compare actor runtimes.")
    parser.add_argument("--quick", action="store_true", help="small rounds, under a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--rounds", type=int, help=f"rounds of each case ({ROUNDS}; {QUICK_ROUNDS} with --quick)")
    parser.add_argument("--cases", help="only these, separated by commas", default=",".join(CASES))
    parser.add_argument("--systems", help="only these, separated by commas", default=",".join(SYSTEMS))
    options = parser.parse_args(arguments)
    cases, systems = options.cases.split(","), options.systems.split(",")
    for kind, chosen, known in (("case", cases, CASES), ("system", systems, SYSTEMS)):
        for name in chosen:
            if name not in known:
                parser.error(f"unknown {kind} {name!r}; there are: {', '.join(known)}")

    drivers: list[Driver] = []
    try:
        for system in systems:
            package = missing(system)
            if package is None:
                drivers.append(Driver(system))
            else:
                print(f"left out: {system}, {package} is not installed")
        run = Run(drivers, rounds=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS), quick=options.quick)
        for name in cases:
            run.case(name)
    finally:
        for driver in drivers:
            driver.close()
    print(table.render(run.rows, run.ratios))
    for driver in drivers:
        for case, error in driver.failed.items():
            print(f"failed: {case} of {driver.system}\n{error}")
    load = run.load or [os.getloadavg()[0]]
    print(f"{machine()}; load {statistics.median(load):.2f} (from {min(load):.2f} to {max(load):.2f})")
    if options.json is not None:
        table.save([*run.rows, table.summarise("load", "machine", "processes", load)], options.json)


if __name__ == "__main__":
    main()
