"""Schedulers of one folder, one after the other, each killed at a random moment: `ROOT JOBS KILLS SEED`.

Each life submits all jobs again, with their keys, and the last one may live until they are over. Each is a fork of this
process, which has imported all that they need.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from random import Random

from tests.scheduler.job_material import request, supervising

from tinker_actors.scheduler.resources import Resources


async def live(root: Path, count: int) -> None:
    async with supervising(root, Resources(cpu_workers=3)) as supervisor:
        jobs = [supervisor.submit(request("0.03", key=f"job {number}")) for number in range(count)]
        await asyncio.gather(*(supervisor.wait(job.id) for job in jobs))


def main() -> None:
    root, count, kills, seed = Path(sys.argv[1]), *map(int, sys.argv[2:])
    draw = Random(seed)
    hits = 0
    for life in range(kills + 1):
        child = os.fork()
        if child == 0:
            asyncio.run(live(root, count))
            os._exit(0)
        if life < kills:
            time.sleep(draw.uniform(0, 0.12))  # not to wait for anything: the moment is random
            os.kill(child, signal.SIGKILL)
        hits += os.waitpid(child, 0)[1] == signal.SIGKILL
    sys.stdout.write(f"{hits}\n")


if __name__ == "__main__":
    main()
