"""Crashes and who deals with them: restarts, siblings that restart together, escalation, and a watcher.

Run it with `python examples/actors/supervised_crash.py`.
"""

# ruff: noqa: T201 - it shows what it does

from __future__ import annotations

import asyncio
import logging

from tinker_actors.actors import Actor, ActorFailure, ActorRef, Mesh, Restarted, RestartPolicy, Strategy


class Part(Actor):
    """Counts until it breaks."""

    def __init__(self) -> None:
        self.n = 0

    async def count(self) -> int:
        """One more."""
        self.n += 1
        return self.n

    async def break_down(self) -> None:
        """Fail for good: the restart policy decides what then."""
        raise ActorFailure("worn out")


class Machine(Actor, strategy=Strategy.ALL_FOR_ONE):
    """Its parts only work together, so they restart together; twice, then the machine itself fails."""

    async def build(self) -> list[ActorRef]:
        """Spawn the parts, each in a process of its own."""
        policy = RestartPolicy.on_failure(max_restarts=2, backoff=0.01)
        return [await self.mesh.spawn(Part, name=name, restart=policy) for name in ("gear", "belt")]


async def main() -> None:
    """Break the machine three times."""
    logging.getLogger("tinker_actors").setLevel(logging.CRITICAL)  # the failures are meant
    async with Mesh(nodes=3) as mesh:
        machine = await mesh.spawn(Machine, name="machine")
        end = mesh.watch(machine)
        gear, belt = parts = mesh.group(await machine.build())
        events = mesh.watch(belt)
        for _ in range(2):
            print("counts:", await parts.ask.count(), await parts.ask.count())
            gear.tell.break_down()
            async for event in events:
                assert isinstance(event, Restarted)
                print("the belt restarted with the gear, incarnation", event.incarnation)
                break
        print("counts:", await parts.ask.count())
        gear.tell.break_down()
        async for event in end:
            print("the machine ended:", event.reason)


if __name__ == "__main__":
    asyncio.run(main())
