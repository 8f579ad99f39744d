"""Ten thousand actors in four processes under fire.

    python -m benchmarks.soak [--quick] [--json FILE] [--minutes N] [--actors N] [--seed N]

Clients ask random workers, some of whom ask others in turn, and cancel a tenth of their asks; a process is killed every
other second. Every ask must end within its deadline, none may be served twice, the counts must reconcile, memory must
stay flat after the first minute (or the first half of a shorter soak), and nothing may be left at the end. One line
for each of these; exit code 1 if one fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks import table
from benchmarks.soak_actors import Worker
from tinker_actors.actors import Mesh, RestartPolicy
from tinker_actors.errors import ActorError

NODES = 4
ACTORS = 10_000
CLIENTS = 64
DEADLINE = 10.0  # seconds that an ask may take
GRACE = 1.0  # seconds by which a busy machine may be late
SAFE = (0, NODES - 1)  # nodes that are not killed: their counts and their memory can be followed to the end
GROWTH = 0.05  # share by which memory may grow


@dataclass
class Tally:
    """What became of the asks."""

    asked: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    safe: Counter[str] = field(default_factory=Counter[str])  # those to workers of safe nodes
    wrong: int = 0
    longest: float = 0.0
    held_up: float = 0.0  # seconds by which the machine let this process be late at most
    kills: int = 0


async def client(workers: list[Any], everyone: list[Any], tally: Tally, luck: random.Random, until: float) -> None:
    """Ask this client's own workers one after another."""
    numbers: Counter[int] = Counter()
    while time.monotonic() < until:
        at = luck.randrange(len(workers))
        ref = workers[at]
        numbers[at] += 1
        seconds = luck.random() * 0.03 if luck.random() < 0.1 else 0.0
        onward = luck.choice(everyone) if luck.random() < 0.2 else None
        tally.asked += 1
        began = time.monotonic()
        ask = asyncio.ensure_future(ref.options(timeout=DEADLINE).work(numbers[at], seconds, onward))
        if luck.random() < 0.1:
            asyncio.get_running_loop().call_later(luck.random() * 0.02, ask.cancel)
        try:
            answer = await ask
            outcome = "answered"
            tally.wrong += answer != numbers[at]
        except asyncio.CancelledError:
            outcome = "cancelled"
        except ActorError as error:
            outcome = type(error).__name__
        tally.longest = max(tally.longest, time.monotonic() - began)
        tally.outcomes[outcome] += 1
        if ref.address.node in SAFE:
            tally.safe[outcome] += 1


async def killer(mesh: Mesh, tally: Tally, luck: random.Random, until: float) -> None:
    """Kill a process every other second."""
    while time.monotonic() < until - 3:
        await asyncio.sleep(1 + 2 * luck.random())
        victim = mesh.pids.get(luck.choice([index for index in range(NODES) if index not in SAFE]))
        if victim is not None:
            try:
                os.kill(victim, signal.SIGKILL)
                tally.kills += 1
            except ProcessLookupError:
                continue


async def lateness(tally: Tally, until: float) -> None:
    """How late this process's event loop is, twenty times a second: it can see no ask end any sooner."""
    while (due := time.monotonic() + 0.05) < until:
        await asyncio.sleep(0.05)
        tally.held_up = max(tally.held_up, time.monotonic() - due)


async def memory(
    mesh: Mesh, samples: list[tuple[float, list[int]]], named: set[Path], began: float, until: float
) -> None:
    """Every second: bytes in use by the processes of the safe nodes, and what shared memory with names any maps."""
    processes = [psutil.Process(os.getpid()), *(psutil.Process(mesh.pids[index]) for index in SAFE[1:])]
    before = named_memory([os.getpid()])
    while time.monotonic() < until:
        samples.append((time.monotonic() - began, [process.memory_info().rss for process in processes]))
        named |= named_memory([os.getpid(), *mesh.pids.values()]) - before
        await asyncio.sleep(1.0)


def named_memory(pids: Iterable[int]) -> set[Path]:
    """Files in /dev/shm that processes map. Those that nobody removes are left where processes are killed."""
    found: set[Path] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            found.update(Path(line.split(maxsplit=5)[5]) for line in lines if " /dev/shm/" in line)
    return found


def growth(samples: list[tuple[float, list[int]]], after: float) -> float:
    """By what share the process that grew most did, from the samples around `after` seconds to the last ones."""
    early = [sizes for at, sizes in samples if at >= after][:5]
    late = [sizes for _, sizes in samples[-5:]]
    if not early or not late:
        return 0.0
    shares: list[float] = []
    for column in range(len(late[0])):
        first = sorted(sizes[column] for sizes in early)[len(early) // 2]
        last = sorted(sizes[column] for sizes in late)[len(late) // 2]
        shares.append(last / first - 1)
    return max(shares)


async def soak(minutes: float, actors: int, seed: int) -> dict[str, Any]:
    """Run it; what was measured."""
    luck = random.Random(seed)
    tally = Tally()
    samples: list[tuple[float, list[int]]] = []
    named: set[Path] = set()
    restart = RestartPolicy(max_restarts=1_000_000, within=10.0, backoff=0.01, backoff_max=0.05)
    async with Mesh(nodes=NODES, restart=restart, name="soak") as mesh:
        folder = mesh.folder
        everyone: list[Any] = [None] * actors

        async def spawn(first: int) -> None:
            for index in range(first, actors, CLIENTS):
                ref: Any = await mesh.spawn(Worker, node=index % NODES, restart=restart)
                everyone[index] = ref
                await ref.read()  # what an actor and a ref have only from their first message on is no growth

        await asyncio.gather(*(spawn(first) for first in range(CLIENTS)))
        for ref in everyone[:NODES]:  # the first large message opens descriptors of pyzmq's that stay
            await ref.swallow(bytes(300_000))
        began = time.monotonic()
        until = began + 60 * minutes
        async with asyncio.TaskGroup() as group:
            for index in range(CLIENTS):
                own = everyone[index::CLIENTS]
                group.create_task(client(own, everyone, tally, random.Random(seed + index), until))
            group.create_task(killer(mesh, tally, luck, until))
            group.create_task(memory(mesh, samples, named, began, until))
            group.create_task(lateness(tally, until))
        counts: Counter[str] = Counter()
        twice = 0
        for start in range(0, actors, CLIENTS):
            some = everyone[start : start + CLIENTS]
            for ref, read in zip(some, await mesh.group(some).options(timeout=60.0).ask.read(), strict=True):
                twice += read["twice"]
                if ref.address.node in SAFE:
                    counts.update(read)
        children = [psutil.Process(pid) for pid in mesh.pids.values()]
    _, alive = psutil.wait_procs(children, timeout=60)
    return {
        "tally": tally,
        "counts": counts,
        "twice": twice,
        "growth": growth(samples, min(60.0, 30 * minutes)),
        "alive": len(alive),
        "named": sorted(path.name for path in named if path.exists()),
        "folder": folder is not None and folder.exists(),
        "seconds": 60 * minutes,
    }


def verdicts(found: dict[str, Any], before: int, after: int) -> list[tuple[str, bool, str]]:
    """What must hold: its name, whether it does, and the figures."""
    tally: Tally = found["tally"]
    counts: Counter[str] = found["counts"]
    ended = sum(tally.outcomes.values())
    unsure = sum(tally.safe.values()) - tally.safe["answered"]  # served, perhaps, but not answered
    fits = tally.safe["answered"] <= counts["ended"] <= tally.safe["answered"] + unsure
    return [
        ("every ask ended", tally.asked == ended, f"{tally.asked} asked, {dict(tally.outcomes)}"),
        (
            "within its deadline",
            tally.longest <= DEADLINE + GRACE + tally.held_up,
            f"the longest took {tally.longest:.2f} s, the loop was {tally.held_up:.2f} s late once",
        ),
        ("with its own answer", tally.wrong == 0, f"{tally.wrong} with another's"),
        ("none served twice", found["twice"] == 0, f"{found['twice']} were"),
        (
            "begun = ended",
            counts["begun"] == sum(counts[how] for how in ("ended", "cancelled", "failed")),
            f"{dict(counts)}",
        ),
        ("served = answered", fits, f"{counts['ended']} served, {tally.safe['answered']} answered, {unsure} not"),
        ("memory flat", found["growth"] <= GROWTH, f"{100 * found['growth']:+.1f} %"),
        ("no process left", found["alive"] == 0, f"{found['alive']} alive"),
        ("no descriptor left", after <= before, f"{before} before, {after} after"),
        ("no shared memory left", not found["named"], ", ".join(found["named"]) or "none"),
        ("no folder left", not found["folder"], str(found["folder"])),
        ("under fire", tally.kills > 0 and tally.outcomes["cancelled"] > 0, f"{tally.kills} processes killed"),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Soak, print, and say whether all held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--minutes", type=float, help="how long (10)")
    parser.add_argument("--actors", type=int, default=ACTORS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    minutes = (0.5 if options.quick else 10.0) if options.minutes is None else options.minutes
    logging.getLogger("tinker_actors").setLevel(logging.CRITICAL)  # it speaks of every process that is killed
    asyncio.run(soak(0.0, 8, 0))  # what is loaded and opened once
    gc.collect()
    before = psutil.Process().num_fds()
    found = asyncio.run(soak(minutes, options.actors, options.seed))
    gc.collect()
    results = verdicts(found, before, psutil.Process().num_fds())
    for name, holds, figures in results:
        print(f"{'ok  ' if holds else 'FAIL'}  {name:<26} {figures}")
    tally: Tally = found["tally"]
    if options.json is not None:
        figures = {
            ("asks", "asks/s"): tally.asked / found["seconds"],
            ("longest_ask", "s"): tally.longest,
            ("memory_growth", "%"): 100 * found["growth"],
            ("kills", "processes"): float(tally.kills),
            ("failed_checks", "checks"): float(sum(not holds for _, holds, _ in results)),
        }
        rows = [
            table.summarise(f"soak_{case}", "tinker_actors", unit, [value]) for (case, unit), value in figures.items()
        ]
        table.save(rows, options.json)
    return 0 if all(holds for _, holds, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
