"""The host that listens: waits for one other node and lets it work."""

from __future__ import annotations

import argparse
import asyncio
import sys

from work import Summer

from tinker_actors.actors import Keys, Mesh


async def main(listen: str, keys: Keys | None) -> None:
    """Share a sum between this host and the node that joins."""
    async with Mesh(listen=listen, keys=keys) as mesh:
        sys.stdout.write(f"listening on {mesh.url}\n")
        sys.stdout.flush()
        await mesh.wait_for_nodes(2)
        here, there = [await mesh.spawn(Summer, node=node) for node in (0, 1)]
        halves = await asyncio.gather(here.squares(0, 50_000), there.squares(50_000, 100_000))
        sys.stdout.write(f"sum: {sum(halves)}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", default="tcp://127.0.0.1:7000")
    parser.add_argument("--keys", help="this host's .secret file; needed beyond loopback")
    options = parser.parse_args()
    asyncio.run(main(options.listen, None if options.keys is None else Keys.load(options.keys)))
