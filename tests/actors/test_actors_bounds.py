"""What bounds what is under way: messages, bytes, transfers, the loop's own copies. Parts by themselves."""

import asyncio
from typing import Any

import pytest
from zoo import Log

from tinker_actors.actors import CodecError, Mesh, asking, bulk, envelope, packing, remote
from tinker_actors.actors.bulk import Bulk
from tinker_actors.actors.chunks import CHUNK, WINDOW, Inflow, Outflow


class Sent:
    """In a connection's place."""

    leads = True

    def __init__(self) -> None:
        self.chunks: list[memoryview] = []

    def put(self, head: bytes, frames: list[memoryview], *, now: bool) -> None:
        self.chunks += frames

    @property
    def size(self) -> int:
        return sum(chunk.nbytes for chunk in self.chunks)


def outflow(budget: int) -> tuple[Outflow, Sent]:
    sent: Any = Sent()
    return Outflow(lambda: sent, budget), sent


def test_no_more_of_a_transfer_is_under_way_than_its_window() -> None:
    flow, sent = outflow(budget=4 * WINDOW)
    done: list[int] = []
    flow.submit(memoryview(bytes(2 * WINDOW)), False, done.append)
    assert sent.size == WINDOW
    flow.acknowledge(1, CHUNK)
    assert sent.size == WINDOW + CHUNK
    while not done:
        flow.acknowledge(1, CHUNK)
    assert sent.size == 2 * WINDOW


def test_a_transfer_waits_until_the_messages_of_those_before_it_have_left() -> None:
    flow, sent = outflow(budget=3 * CHUNK)
    for _ in range(2):
        flow.submit(memoryview(bytes(2 * CHUNK)), False, lambda _: None)
    assert sent.size == 2 * CHUNK
    flow.acknowledge(1, 2 * CHUNK)
    assert sent.size == 2 * CHUNK
    flow.delivered(2 * CHUNK)
    assert sent.size == 4 * CHUNK


def test_a_peer_can_not_have_more_kept_than_the_limit() -> None:
    flow = Inflow(1000, lambda: None)
    assert flow.chunk(envelope.join([packing.pack([1, 1, 0, 600, False])], ()), memoryview(bytes(10))) == (1, 10)
    with pytest.raises(CodecError, match="a transfer of 500 bytes while 600 of at most 1000 are held"):
        flow.chunk(envelope.join([packing.pack([1, 2, 0, 500, False])], ()), memoryview(bytes(10)))


async def test_the_loop_copies_only_so_much_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Bulk(asyncio.get_running_loop(), 0, 1000)
    now = 10.0
    monkeypatch.setattr(bulk, "perf_counter", lambda: now)
    assert copies.copies_now(bulk.INLINE - 1)
    assert not copies.copies_now(2)
    now += 2 * bulk.INLINE_EVERY
    assert copies.copies_now(2)


async def test_plain_values_are_bound_like_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a shorter way."""
    async with Mesh(nodes=2, max_message=25_000) as mesh:
        log = await mesh.spawn(Log, node=1)
        with pytest.raises(CodecError, match=r"a message of 300\d\d bytes exceeds this mesh's limit of 25000 bytes"):
            await log.note("x" * 30_000)
        monkeypatch.setattr(asking, "WINDOW_BYTES", 5000)
        monkeypatch.setattr(remote, "WINDOW_BYTES", 5000)
        held = asyncio.create_task(log.hold())
        await log.wait_for("hold begins")
        asks = [asyncio.create_task(log.note("x" * 900)) for _ in range(20)]
        await asyncio.sleep(0)
        target: Any = log.target
        assert 2000 < target.bytes <= 5000
        assert target.parked[0] > 10
        held.cancel()
        await asyncio.gather(*asks)
        assert len(await log.peek()) == 22  # and that it held, and was cancelled
