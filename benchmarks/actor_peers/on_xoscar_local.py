"""xoscar's shortest way: a ref that an actor holds to another one of its process, which calls the method itself.

It takes the other's lock and puts no message anywhere: no mailbox, no bound, no deadline. Only code that runs where
the actor lives gets such a ref; others go through a channel, see `on_xoscar`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import xoscar as xo
from xoscar.backends.allocate_strategy import ProcessIndex

from benchmarks.actor_peers import measure, on_xoscar


class Asker(xo.Actor):
    """Asks other actors of its process and measures it."""

    async def __post_create__(self) -> None:
        self.others: list[Any] = []

    async def meet(self, refs: list[Any]) -> str:
        """Take local refs to `refs`; the name of their class."""
        self.others = [await xo.actor_ref(ref) for ref in refs]
        return type(self.others[0]).__name__

    @xo.no_lock
    async def run(self, case: str, count: int) -> float:
        """The figure of a case."""
        other = self.others[0]
        if case == "p50":
            return await measure.p50(lambda: other.add(1), count)
        if case == "pipelined":
            return await measure.pipelined(lambda: other.add(1), count)
        time = await measure.p50(lambda: asyncio.gather(*(ref.add(1) for ref in self.others)), count)
        return time / 1e3


_askers: dict[int, Any] = {}


async def _asker(others: int) -> Any:
    if others not in _askers:
        refs = [await on_xoscar.spawn(0) for _ in range(others)]
        pool = await on_xoscar.pool()
        asker = await xo.create_actor(Asker, address=pool.external_address, allocate_strategy=ProcessIndex(0))
        kind = await asker.meet(refs)
        if kind != "LocalActorRef":
            raise RuntimeError(f"xoscar gave a {kind} within one process, not a LocalActorRef")
        _askers[others] = asker
    return _askers[others]


def _case(name: str, others: int = 1) -> Callable[[int], Awaitable[float]]:
    async def case(count: int) -> float:
        return await (await _asker(others)).run(name, count)

    return case


async def _cpu(count: int) -> float:
    asker = await _asker(1)
    return await measure.cpu_per_operation(lambda: asker.run("pipelined", count), count)


stop = on_xoscar.stop

CASES = {
    "ask_p50_local": _case("p50"),
    "asks_pipelined_256_local": _case("pipelined"),
    "cpu_per_ask_local": _cpu,
    "barrier_1000_local": _case("barrier", 1000),
}
