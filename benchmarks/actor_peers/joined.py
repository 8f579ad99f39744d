"""A process that joins our mesh over tcp and stays until its standard input ends: URL, and a key file for CURVE."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.actor_peers.driver import loop_factory
from tinker_actors.actors import Mesh
from tinker_actors.actors.keys import Keys


async def _stay(url: str, secret: str) -> None:
    keys = Keys.load(secret) if secret else None
    async with Mesh.join(url, keys=keys, imports=["benchmarks"]):
        print("joined", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_stay(*sys.argv[1:3]))
