"""A mesh whose nodes are in a Ray cluster of this host; one of the workers is killed."""

import asyncio
import os
import signal
import sys

from zoo import Counter

from tinker_actors.actors import Mesh, RayPlacement, Restarted, RestartPolicy


async def main() -> None:
    placement = RayPlacement(imports=["zoo"], num_cpus=0.5)
    async with Mesh(nodes=3, placement=placement, start_timeout=240, ping=0.5) as mesh:
        counters = [
            await mesh.spawn(Counter, node=node, restart=RestartPolicy.on_failure(backoff=0.0)) for node in (1, 2)
        ]
        assert [await counter.add(2) for counter in counters] == [2, 2]
        pids = [await counter.pid() for counter in counters]
        assert len({os.getpid(), *pids}) == 3
        events = mesh.watch(counters[0])
        os.kill(pids[0], signal.SIGKILL)
        assert isinstance(await anext(events), Restarted)
        assert await counters[0].add(5) == 5
        assert await counters[0].pid() not in pids
        assert await counters[1].add(5) == 7
    sys.stdout.write("ended in order\n")


if __name__ == "__main__":
    asyncio.run(main())
