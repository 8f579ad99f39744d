"""Messages that arrive before the data that they bring has been copied."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bulk_zoo import Store
from hypothesis import given
from hypothesis import strategies as st

from tinker_actors.actors import CodecError, Mesh, NodeDiedError, RestartPolicy, late_data, link
from tinker_actors.actors.arena import Arena, Block
from tinker_actors.actors.late_data import LateData
from tinker_actors.actors.leases import Borrower, Loan, Mark

MIB = 1 << 20

pytestmark = pytest.mark.skipif(not link.COPIES_LAST, reason="data is copied first on this machine")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Delayed:
    """Copies that are made when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[Callable[[], None]] = []
        keep = Block.keep
        monkeypatch.setattr(Block, "keep", lambda *args: self.waiting.append(lambda: keep(*args)))

    def copy(self) -> None:
        self.waiting.pop(0)()


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    async with Mesh(nodes=3) as mesh:
        yield mesh


async def test_a_message_is_never_read_before_its_data_is_whole(mesh: Mesh) -> None:
    store = await mesh.spawn(Store, node=1)
    for i in range(150):
        size = MIB + i * 1000
        if i % 3 == 2:
            assert await store.echo(bytes([i]) * size) == bytes([i]) * size
        else:
            await store.keep(np.full(size, i, np.uint8))
            assert await store.totals() == [i * size]
            await store.drop()


async def test_what_follows_from_the_same_sender_waits_and_nobody_else_does(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = await mesh.spawn(Store, node=1), await mesh.spawn(Store, node=1)
    relay = await mesh.spawn(Store, node=2)
    delayed = Delayed(monkeypatch)
    asks = [asyncio.ensure_future(store.count(1, np.ones(MIB, np.uint8)))]
    await until(lambda: len(delayed.waiting) == 1)
    asks += [
        asyncio.ensure_future(store.count(2, b"small")),
        asyncio.ensure_future(other.count(3, np.ones(2 * MIB, np.uint8))),
        asyncio.ensure_future(store.count(4, b"small")),
    ]
    await until(lambda: len(delayed.waiting) == 2)
    assert await relay.forward(other, b"by another way") == b"by another way"
    assert not any(ask.done() for ask in asks)
    delayed.copy()
    await asks[0]
    assert not any(ask.done() for ask in asks[1:])
    delayed.copy()
    await asyncio.gather(*asks)
    assert await store.counted() == [1, 2, 4]


async def test_a_copy_that_fails_is_the_askers_error(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await mesh.spawn(Store, node=1)

    def interrupted(block: Block, promise: int, data: memoryview) -> None:
        block.segment.marks[block.index] = -promise

    with monkeypatch.context() as patch:
        patch.setattr(Block, "keep", interrupted)
        with pytest.raises(CodecError, match="its sender failed to write the data"):
            await store.size(np.ones(MIB, np.uint8))
    assert await store.size(np.ones(MIB, np.uint8)) == MIB
    assert mesh._node is not None
    arena: Any = mesh._node.exchange.bulk.arena
    await until(lambda: arena.used == 0)


async def test_data_that_never_comes_is_an_error_and_holds_up_nobody_for_ever(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_data, "TOO_LATE", 0.05)
    receiver = await mesh.spawn(Store, node=0)
    sender = await mesh.spawn(Store, node=1)
    assert await sender.forget_to_copy(receiver) == "CodecError: the data of a message was not written within 0.05 s"
    assert await receiver.totals() == []


@pytest.mark.parametrize("last", [True, False])
async def test_a_copy_that_raises_keeps_no_other_from_being_made_nor_the_message_from_leaving(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    monkeypatch.setattr(link, "COPIES_LAST", last)
    store = await mesh.spawn(Store, node=1)
    keep = Block.keep
    calls = 0

    def interrupted(block: Block, promise: int, data: memoryview) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            block.segment.marks[block.index] = -promise
            raise RuntimeError("interrupted")
        keep(block, promise, data)

    monkeypatch.setattr(Block, "keep", interrupted)
    arrays = [np.ones(MIB, np.uint8), np.ones(MIB, np.uint8)]
    with pytest.raises(RuntimeError, match="interrupted"):
        await store.echo(arrays)
    assert calls == 2
    assert await store.size(arrays[0]) == MIB
    assert mesh._node is not None
    pending = mesh._node.exchange.pending
    await until(lambda: not pending)


async def test_a_sender_that_dies_while_it_copies_has_sent_nothing(tmp_path: Path) -> None:
    policy = RestartPolicy(max_restarts=5, backoff=0.01)
    async with Mesh(nodes=2, restart=policy) as mesh:
        receiver, sender = await mesh.spawn(Store, node=0), await mesh.spawn(Store, node=1, restart=policy)
        assert mesh._node is not None
        held = mesh._node.exchange.intake._late.held
        dying = asyncio.ensure_future(sender.die_while_copying(receiver, str(tmp_path / "arrived")))
        await until(lambda: bool(held))
        (tmp_path / "arrived").touch()
        with pytest.raises(NodeDiedError):
            await dying
        await until(lambda: not held)
        assert await sender.forward(receiver, np.full(MIB, 3, np.uint8)) is not None
        assert await receiver.totals() == []


async def test_data_is_copied_first_where_stores_may_be_seen_out_of_order(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "COPIES_LAST", False)
    store = await mesh.spawn(Store, node=1)
    order: list[str] = []
    keep, send = Block.keep, link.Outbound._send
    monkeypatch.setattr(Block, "keep", lambda *args: (order.append("copy"), keep(*args)))
    monkeypatch.setattr(link.Outbound, "_send", lambda *args: (order.append("send"), send(*args))[1])
    assert await store.size(np.ones(MIB, np.uint8)) == MIB
    assert order == ["copy", "send"]


def test_a_block_says_whether_it_was_written() -> None:
    loop = asyncio.new_event_loop()
    arena = Arena(loop, 64 * MIB)
    block = arena.allocate(MIB)
    assert block is not None
    mark = Mark(block.segment.view.cast("q"), block.mark, arena.next_promise(), core=0)
    assert not mark.is_set
    block.keep(1, memoryview(b"data"))
    assert mark.is_set
    assert not mark.is_broken
    with pytest.raises(ValueError, match="different structures"):
        block.keep(2, memoryview(bytes(8)).cast("q"))
    assert Mark(block.segment.view.cast("q"), block.mark, 2, core=0).is_broken
    assert not mark.is_set
    arena.close()
    loop.close()


@given(st.lists(st.one_of(st.integers(-(2**64), 2**64), st.text(max_size=3), st.none()), max_size=4))
def test_promises_that_mean_nothing_are_refused(promise: list[Any]) -> None:
    loop = asyncio.new_event_loop()
    arena = Arena(loop, 64 * MIB)
    borrower = Borrower(loop, lambda _: None)
    assert borrower.accept(os.getpid(), arena.probe, arena.name)
    block = arena.allocate(MIB)
    assert block is not None
    try:
        loan = borrower.borrow(1, block.segment.id, block.segment.fd, block.offset, MIB, *promise)
    except (CodecError, ValueError, TypeError):
        pass
    else:
        assert loan.mark is None or not loan.mark.is_set
    borrower.close()
    arena.close()
    loop.close()


def lent(loop: asyncio.AbstractEventLoop, marks: list[int], core: int) -> Loan:
    loan: Any = object.__new__(Loan)
    loan.mark = Mark(marks, 0, 1, core)  # type: ignore[arg-type]
    return loan


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no other core")
async def test_a_receiver_leaves_the_core_that_its_sender_copies_on(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(late_data, "ASIDE_EVERY", 60.0)
    late = LateData(loop, set(), lambda *_: None)
    allowed = os.sched_getaffinity(0)
    moved: list[set[int]] = []
    move = os.sched_setaffinity
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: (moved.append(set(cores)), move(pid, cores)))
    monkeypatch.setattr(late_data, "current_core", lambda: min(allowed))
    assert late.is_whole(b"", b"", [lent(loop, [1], core=max(allowed))])
    assert not moved
    for _ in range(3):  # not more often than it is worth
        assert late.is_whole(b"", b"", [lent(loop, [1], core=min(allowed))])
    assert moved == [allowed - {min(allowed)}, allowed]
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no other core")
async def test_a_receiver_has_all_its_cores_again_whatever_a_signals_handler_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = LateData(asyncio.get_running_loop(), set(), lambda *_: None)
    allowed = os.sched_getaffinity(0)
    move = os.sched_setaffinity

    def interrupted(pid: int, cores: set[int]) -> None:
        move(pid, cores)
        if cores != allowed:
            raise RuntimeError("a signal's handler")

    monkeypatch.setattr(os, "sched_setaffinity", interrupted)
    monkeypatch.setattr(late_data, "current_core", lambda: min(allowed))
    with pytest.raises(RuntimeError, match="a signal's handler"):
        late.is_whole(b"", b"", [lent(asyncio.get_running_loop(), [1], core=min(allowed))])
    kept = os.sched_getaffinity(0)
    move(0, allowed)
    assert kept == allowed
