"""Schedulers of one folder that delete its jobs, one after the other, each killed at a random moment after its first
deletion: `ROOT KILLS SEED`.

Each is a fork of this process, which has imported all that they need.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from random import Random

from tests.scheduler.job_material import ONE, fake

from tinker_actors.actors import Mesh
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.service import Scheduler


async def live(root: Path, begun: int) -> None:
    async with Mesh() as mesh:
        scheduler = await mesh.spawn(Scheduler, str(root), ONE, settings=SchedulerSettings(command=fake))
        for job in await scheduler.jobs():
            await scheduler.delete(job.id)
            os.write(begun, b"1")
            await scheduler.cleared()


def main() -> None:
    root, kills, draw = Path(sys.argv[1]), int(sys.argv[2]), Random(int(sys.argv[3]))
    hits = 0
    for _ in range(kills):
        told, begun = os.pipe()
        child = os.fork()
        if child == 0:
            asyncio.run(live(root, begun))
            os._exit(0)
        os.close(begun)
        os.read(told, 1)
        os.close(told)
        time.sleep(draw.uniform(0, 0.01))  # not to wait for anything: the moment is random
        os.kill(child, signal.SIGKILL)
        hits += os.waitpid(child, 0)[1] == signal.SIGKILL
    sys.stdout.write(f"{hits}\n")


if __name__ == "__main__":
    main()
