"""Actors that start, meet or restart together with others."""

from __future__ import annotations

import os
from typing import Any

from zoo import Fragile, Log

from tinker_actors.actors import Actor, ActorFailure, ActorRef, Barrier, RestartPolicy, Strategy, concurrent


class DiesTwice(Actor):
    """Kills its process while it starts for the second time; the folder remembers how often it started."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def on_start(self) -> None:
        with open(self.path, "a") as file:  # noqa: ASYNC230
            file.write("x")
        with open(self.path) as file:  # noqa: ASYNC230
            if len(file.read()) == 2:
                os.kill(os.getpid(), 9)

    async def pid(self) -> int:
        return os.getpid()


class Greeter(Actor):
    """Finds another actor by name and talks to it while it starts."""

    async def on_start(self) -> None:
        await self.mesh.get("log").note("greeted")

    async def pid(self) -> int:
        return os.getpid()


class Walker(Actor):
    """Meets others at a barrier."""

    def __init__(self, log: Log | None = None) -> None:
        self.log = log

    async def walk(self, barrier: Barrier, phases: int = 1) -> list[int]:
        return [await barrier.arrive(self) for _ in range(phases)]

    @concurrent
    async def walk_as(self, name: str, barrier: Barrier) -> int:
        return await barrier.arrive(name)

    @concurrent
    async def walk_beside(self, barrier: Barrier, phase: int | None = None, timeout: float | None = None) -> int:
        return await barrier.arrive(self, phase, timeout=timeout)

    async def build(self, parties: list[Any]) -> Barrier:
        return await self.mesh.barrier(parties)

    async def die(self) -> None:
        os.kill(os.getpid(), 9)

    async def fail(self) -> None:
        raise ActorFailure("the walker failed")


class Family(Actor, strategy=Strategy.ALL_FOR_ONE):
    """Its children restart together."""

    async def raise_children(self, log: Log, policies: list[RestartPolicy]) -> list[ActorRef]:
        nodes = self.mesh.nodes
        return [
            await self.mesh.spawn(Fragile, log, f"child{i}", node=i % nodes, restart=policy, name=f"child{i}")
            for i, policy in enumerate(policies)
        ]
