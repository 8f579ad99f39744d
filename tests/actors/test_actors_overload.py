"""Many messages for an actor that takes none."""

import asyncio
import gc
import time
from typing import Any

from zoo import Counter, Log

from tinker_actors.actors import Mesh


async def time_to_cancel(asks: list[asyncio.Task[Any]]) -> float:
    """Seconds of processor time, without what the collector does meanwhile about the objects of other tests."""
    gc.disable()
    try:
        began = time.process_time()
        for ask in reversed(asks):
            ask.cancel()
        await asyncio.wait(asks)
        return time.process_time() - began
    finally:
        gc.enable()


async def test_asks_that_are_given_up_while_they_wait_cost_in_proportion_and_leave_nothing() -> None:
    async with Mesh(nodes=2, blocked_loop=None) as mesh:
        log: Any = await mesh.spawn(Log, node=1, mailbox=8)
        held = asyncio.create_task(log.hold())
        await log.wait_for("hold begins")

        async def give_up(count: int) -> float:
            asks = [asyncio.create_task(log.note("given up")) for _ in range(count)]
            await asyncio.sleep(0)
            assert len(log.target.backlog) > count - 20
            return await time_to_cancel(asks)

        few = min([await give_up(500) for _ in range(4)])
        many = min([await give_up(8000) for _ in range(2)])
        assert many < 16 * 4 * few
        # What was sent keeps its place until it is served; what was not leaves no trace.
        assert not log.target.backlog
        held.cancel()
        assert "given up" not in await log.read()


async def test_what_waits_behind_asks_that_were_given_up_is_served_in_order() -> None:
    async with Mesh(nodes=2) as mesh:
        log: Any = await mesh.spawn(Log, node=1, mailbox=4)
        held = asyncio.create_task(log.hold())
        await log.wait_for("hold begins")
        asks = [asyncio.create_task(log.note(f"{number}")) for number in range(60)]
        await asyncio.sleep(0)
        dropped = [ask for number, ask in enumerate(asks) if number % 3 == 0]
        for ask in dropped:
            ask.cancel()
        await asyncio.wait(dropped)
        waiting = (await mesh.describe()).nodes[0].links[0].messages
        held.cancel()
        await asyncio.gather(*(ask for ask in asks if ask not in dropped))
        notes = [note for note in await log.read() if note.isdigit()]
        assert notes == [f"{number}" for number in range(60) if number % 3]
        assert waiting < 40  # those that were given up are not counted


async def test_asks_that_are_given_up_while_their_node_comes_back_cost_in_proportion() -> None:
    async with Mesh(nodes=2, blocked_loop=None) as mesh:
        counter: Any = await mesh.spawn(Counter, node=1, mailbox=100_000)
        exchange = mesh._node.exchange  # type: ignore[union-attr]
        peer = exchange.by_index[1]
        peer.is_open = False  # as between a process's end and the next one's start

        async def give_up(count: int) -> float:
            asks = [asyncio.create_task(counter.add(1)) for _ in range(count)]
            await asyncio.sleep(0)
            return await time_to_cancel(asks)

        few = min([await give_up(500) for _ in range(4)])
        many = min([await give_up(8000) for _ in range(2)])
        assert many < 16 * 4 * few
        exchange.open_peer(1)
        assert await counter.value() == 0
