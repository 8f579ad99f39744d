"""Training steps against PEFT with a plain transformers loop, TRL's trainer, and this package one policy at a time.

    python -m benchmarks.training [--quick] [--json FILE] [--rounds N] [--cases A,B] [--systems A,B]
                                  [--threads N] [--clock wall|processor] [--memory GB] [--peers-python FILE]

Every system trains the same model on the same batch with the same adapter, in a process of its own: SmolLM2-135M from
the cache, else random weights of its shape; or, where rows are long, random weights of a smaller one. Peers take as
many rows at a time as fit into `--memory`; what they need is printed before anything starts. In each round of
a case the systems take their turns one after another, in an order that rotates; what is printed are medians over the
rounds. On a machine with other work to do `--clock processor` counts processor time, which moves less. `--peers-python`
is the interpreter for peers that live in another environment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import table
from benchmarks.peer_process import PeerProcess
from benchmarks.training_peers import CASES, SYSTEMS, peer_megabytes, rows_within

OURS = "tinker_actors"
PEERS = frozenset({"trl"})
ROUNDS, QUICK_ROUNDS = 5, 3
MODEL = "smollm2-135m"

SHAPES: dict[bool, dict[str, int]] = {
    False: {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    # the head's share of the weights, heads of 64 and the widths' ratios are the large one's
    True: {
        "vocab_size": 10240,
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    },
}
"""Of random weights, by whether the model is a small one."""


class Driver(PeerProcess):
    """One system's process.

    Attributes:
        missing: Packages that it lacks.
    """

    def __init__(self, system: str, model: Path, threads: int, python: str) -> None:
        command = [python, "-m", "benchmarks.training_peers.driver", system, str(model), str(threads)]
        # a thread that spins while it waits takes the processor from the others
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "0"}
        super().__init__(system, command, environment)
        self.missing: list[str] = self.read()["missing"]

    def measure(self, case: str, size: int, rows: int) -> dict[str, float] | None:
        """One step's tokens, seconds and peak memory, or None where the system failed."""
        return self.ask(case, size, rows)


class Run:
    """All rounds of the chosen cases."""

    def __init__(self, *, rounds: int, quick: bool, clock: str) -> None:
        self.rounds, self.quick, self.clock = rounds, quick, clock
        self.load: list[float] = []
        self.rows: list[table.Row] = []
        self.ratios: dict[tuple[str, str], float] = {}

    def case(self, name: str, drivers: Sequence[Driver], peer_rows: int) -> list[table.Row]:
        """The rows of one case: every round, after one to warm up with and to find out who can't."""
        case = CASES[name]
        taking = [driver for driver in drivers if driver.system in case.systems]
        taking = [driver for driver in taking if driver.measure(name, 1, peer_rows) is not None]
        size = case.quick if self.quick else case.size
        rates: dict[str, list[float]] = {driver.system: [] for driver in taking}
        peaks: dict[str, list[float]] = {driver.system: [] for driver in taking}
        for number in range(self.rounds):
            self.load.append(os.getloadavg()[0])
            for position in range(len(taking)):
                driver = taking[(number + position) % len(taking)]
                answer = driver.measure(name, size, peer_rows)
                if answer is not None:
                    rates[driver.system].append(answer["tokens"] / answer[self.clock])
                    peaks[driver.system].append(answer["peak"])
        rows = [
            *self._rows(f"{name}_tokens_per_s", "tokens/s", rates),
            *self._rows(f"{name}_peak_memory", "MB", peaks),
        ]
        self.rows += rows
        return rows

    def _rows(self, name: str, unit: str, values: dict[str, list[float]]) -> list[table.Row]:
        rows: list[table.Row] = []
        for system, figures in values.items():
            if not figures:
                continue
            rows.append(table.summarise(name, system, unit, figures))
            if system != OURS and len(values.get(OURS, ())) == len(figures):
                self.ratios[name, system] = table.paired_ratio(values[OURS], figures)
        return rows


def model_directory(scratch: Path, *, small: bool) -> tuple[Path, str]:
    """A directory with the model, and what it holds."""
    from tinker_actors.models.cache import cache_dir

    fetched = cache_dir() / "models" / MODEL
    if not small and (fetched / "config.json").is_file():
        return fetched, MODEL
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tinker_actors.models import save_model_directory

    torch.manual_seed(0)
    config = LlamaConfig(**SHAPES[small], max_position_embeddings=8192, tie_word_embeddings=True)
    made = save_model_directory(LlamaForCausalLM(config), "tiny-llama", scratch / f"model-{small}")
    if small:
        return made, f"random weights, {config.num_hidden_layers} layers {config.hidden_size} wide"
    return made, f"random weights of the shape of {MODEL}, which isn't fetched"


def peer_rows(case: str, model: Path, megabytes: float) -> int:
    """The rows that a peer's micro-batch gets; says what it will need.

    Raises:
        SystemExit: Not even one row fits, or the machine has less than that free.
    """
    config = json.loads((model / "config.json").read_text())
    rows = rows_within(megabytes, config, CASES[case].longest)
    least = peer_megabytes(config, CASES[case].longest)
    if not rows:
        raise SystemExit(f"--memory is {megabytes / 1000:g} GB; {case} needs {least / 1000:.1f} for one row of a peer")
    expected = peer_megabytes(config, rows * CASES[case].longest)
    free = _available()
    if free < expected:
        raise SystemExit(f"{case} needs {expected / 1000:.1f} GB for a peer's rows; {free / 1000:.1f} GB are free")
    print(f"{case}: peers take {rows} rows at a time, about {expected / 1000:.1f} GB", flush=True)
    return rows


def _available() -> float:
    """Memory that is free for new work, in MB."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) / 1024
    return math.inf


@contextlib.contextmanager
def started(systems: Sequence[str], model: Path, threads: int, peers_python: str) -> Iterator[list[Driver]]:
    """The processes of those systems that are installed."""
    drivers: list[Driver] = []
    try:
        for system in systems:
            driver = Driver(system, model, threads, peers_python if system in PEERS else sys.executable)
            if driver.missing:
                driver.close()
                print(f"left out: {system}, {driver.missing[0]} is not installed")
            else:
                drivers.append(driver)
        yield drivers
    finally:
        for driver in drivers:
            driver.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description="Compare training steps.")
    parser.add_argument("--quick", action="store_true", help="small batches, a few minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--rounds", type=int, help=f"rounds of each case ({ROUNDS}; {QUICK_ROUNDS} with --quick)")
    parser.add_argument("--cases", help="only these, separated by commas", default=",".join(CASES))
    parser.add_argument("--systems", help="only these, separated by commas", default=",".join(SYSTEMS))
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each system (all cores)")
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall", help="what a second is (wall)")
    parser.add_argument("--memory", type=float, default=4.0, metavar="GB", help="what a peer's rows may need (4)")
    parser.add_argument("--peers-python", default=sys.executable, metavar="FILE", help="interpreter for trl")
    options = parser.parse_args(arguments)
    cases, systems = options.cases.split(","), options.systems.split(",")
    for kind, chosen, known in (("case", cases, CASES), ("system", systems, SYSTEMS)):
        for name in chosen:
            if name not in known:
                parser.error(f"unknown {kind} {name!r}; there are: {', '.join(known)}")

    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    run = Run(rounds=rounds, quick=options.quick, clock=options.clock)
    models: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for small in sorted({CASES[name].small for name in cases}, reverse=True):
            model, what = model_directory(Path(scratch), small=small)
            names = [name for name in cases if CASES[name].small == small]
            models.append(f"{', '.join(names)}: {what}")
            rows = {name: peer_rows(name, model, 1000 * options.memory) for name in names}
            taking = [one for one in systems if any(one in CASES[name].systems for name in names)]
            with started(taking, model, options.threads, options.peers_python) as drivers:
                for name in names:
                    print(table.render(run.case(name, drivers, rows[name]), run.ratios), flush=True)
                for driver in drivers:
                    for case, error in driver.failed.items():
                        print(f"failed: {case} of {driver.system}\n{error}")
    load = run.load or [os.getloadavg()[0]]
    print(
        f"{'; '.join(models)}\n{options.threads} of {os.cpu_count()} cores, seconds of the {options.clock} clock; "
        f"{platform.machine()}, Python {platform.python_version()}; "
        f"load {statistics.median(load):.2f} (from {min(load):.2f} to {max(load):.2f})"
    )
    if options.json is not None:
        table.save([*run.rows, table.summarise("load", "machine", "processes", load)], options.json)


if __name__ == "__main__":
    main()
