"""Large data between processes: shared memory, chunks, order, mutability, limits."""

import asyncio
import contextlib
import errno
import gc
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import zmq
from bulk_zoo import Store
from shared_meshes import Shared
from zoo import Counter, Log

from tinker_actors.actors import CodecError, MailboxFull, Mesh

MIB = 1 << 20
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "shared memory": ("ipc", {"shared_memory": 512 * MIB}),
    "chunks": ("ipc", {"shared_memory": 0}),
    "tcp": ("tcp", {}),
}


def arena_of(mesh: Mesh) -> Any:
    assert mesh._node is not None
    return mesh._node.exchange.bulk.arena


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(WAYS))
async def shared_mesh(request: pytest.FixtureRequest) -> AsyncIterator[Shared]:
    """What `mesh` is: two processes with and without shared memory, and a link as to another host."""
    way = Shared(*WAYS[request.param])
    yield way
    await way.close()


in_shared_memory = pytest.mark.parametrize("shared_mesh", ["shared memory"], indirect=True)
"""A test of `mesh` the first way only."""


@pytest.fixture
async def shared() -> AsyncIterator[Mesh]:
    """Two processes whose shared memory nobody has used."""
    async with Mesh(nodes=2) as mesh:
        yield mesh


async def test_large_values_of_every_kind_arrive_equal(mesh: Mesh) -> None:
    torch = pytest.importorskip("torch")
    store = await mesh.spawn(Store)
    noise = np.random.default_rng(0)
    for size in (65_535, 65_536, MIB, 2 * MIB + 3, 9 * MIB + 1):
        data = noise.integers(0, 256, size, np.uint8)
        text = data.tobytes()
        value = [data, {"bytes": text, "more": (text, [data[::-1]])}, torch.from_numpy(data.copy())]
        back = await store.echo(value)
        np.testing.assert_array_equal(back[0], data)
        assert back[1]["bytes"] == text
        assert back[1]["more"][0] == text
        np.testing.assert_array_equal(back[1]["more"][1][0], data[::-1])
        assert torch.equal(back[2], value[2])
    assert await store.echo(bytearray(3 * MIB)) == bytes(3 * MIB)
    assert await store.echo(memoryview(bytes(3 * MIB))) == bytes(3 * MIB)


@in_shared_memory
async def test_large_arrays_arrive_read_only_in_the_senders_memory(mesh: Mesh) -> None:
    store = await mesh.spawn(Store)
    file, writable = await store.where(np.ones(4 * MIB, np.uint8))
    assert "memfd:tinker-actors" in file
    assert not writable
    back = await store.make(2 * MIB, 7)
    assert not back.flags.writeable
    assert back.sum() == 7 * 2 * MIB


@in_shared_memory
async def test_what_lies_in_the_arena_is_sent_without_a_copy(mesh: Mesh) -> None:
    store = await mesh.spawn(Store)
    array = mesh.put(np.arange(MIB, dtype=np.float32))
    buffer = mesh.buffer((2, MIB))
    buffer[:] = 2
    used = arena_of(mesh).used
    files = {str(os.stat(segment.fd).st_ino) for segment in arena_of(mesh)._segments.values()}
    for value in (array, buffer, buffer[1], array[1000:100_000]):
        file, _ = await store.where(value)
        assert file.split()[0] in files
        await store.keep(value)
    assert arena_of(mesh).used == used
    assert await store.totals() == [
        pytest.approx(value.sum()) for value in (array, buffer, buffer[1], array[1000:100_000])
    ]


@in_shared_memory
async def test_an_array_in_the_arena_is_frozen_by_sending_it(mesh: Mesh) -> None:
    store = await mesh.spawn(Store)
    buffer = mesh.buffer(MIB, "uint8")
    buffer[:] = 3
    await store.keep(buffer)
    with pytest.raises(ValueError, match="read-only"):
        buffer[0] = 4
    with pytest.raises(ValueError, match="read-only"):
        mesh.put(np.ones(MIB))[0] = 4


@in_shared_memory
async def test_tensors_are_copied_on_write(mesh: Mesh) -> None:
    torch = pytest.importorskip("torch")
    store = await mesh.spawn(Store)
    for dtype in (torch.bfloat16, torch.float32):
        tensor = mesh.put(torch.full((MIB,), 2, dtype=dtype))
        used = arena_of(mesh).used
        assert [await store.add_one(tensor) for _ in range(3)] == [3.0, 3.0, 3.0]
        assert torch.equal(tensor, torch.full((MIB,), 2, dtype=dtype))
        assert arena_of(mesh).used <= used
        back = await store.echo(tensor)
        back += 1
        assert torch.equal(back, tensor + 1)


@in_shared_memory
async def test_memory_is_lent_until_the_last_view_is_gone(mesh: Mesh) -> None:
    store = await mesh.spawn(Store)
    arena = arena_of(mesh)
    await store.size(np.ones(3 * MIB, np.uint8))
    await until(lambda: arena.used == 0)
    await store.keep(np.ones(3 * MIB, np.uint8))
    await store.keep_beside(np.ones(3 * MIB, np.uint8))
    assert arena.used == 6 * MIB
    await store.drop()
    await until(lambda: arena.used == 0)
    view = (await store.make_in_buffer(4 * MIB, 5))[10:20]
    gc.collect()
    assert view.tolist() == [5] * 10
    array = mesh.put(np.ones(MIB, np.uint8))
    part = array[5:9]
    del array
    assert arena.used == MIB
    del part
    assert arena.used == 0


@in_shared_memory
async def test_what_the_receiver_does_not_keep_comes_back_with_the_answer(mesh: Mesh) -> None:
    store = await mesh.spawn(Store)
    for size in (MIB, 9 * MIB + 1):
        await store.size(np.ones(size, np.uint8))
        await asyncio.sleep(0)  # the answer's batch has been read to its end
        assert arena_of(mesh).used == 0
    await store.keep(np.ones(MIB, np.uint8))
    assert arena_of(mesh).used == MIB
    await store.drop()
    await asyncio.sleep(0)
    assert arena_of(mesh).used == 0


@in_shared_memory
async def test_a_failed_ask_keeps_nothing_alive(mesh: Mesh) -> None:
    store = await mesh.spawn(Store)
    gc.disable()
    try:
        with pytest.raises(AttributeError):
            await store.nonesuch(mesh.put(np.ones(MIB, np.uint8)))
        await until(lambda: arena_of(mesh).used == 0)
    finally:
        gc.enable()


async def test_pages_are_used_again(shared: Mesh) -> None:
    store = await shared.spawn(Store)
    for _ in range(20):
        await store.size(np.ones(16 * MIB, np.uint8))
    assert arena_of(shared).size <= 64 * MIB


async def test_a_full_arena_falls_back_to_chunks() -> None:
    async with Mesh(nodes=2, shared_memory=32 * MIB) as mesh:
        store = await mesh.spawn(Store)
        for i in range(12):
            await store.keep(np.full(MIB, i, np.int64))
        assert arena_of(mesh).size <= 32 * MIB
        assert await store.totals() == [i * MIB for i in range(12)]
        assert (await store.make(40 * MIB, 1)).nbytes == 40 * MIB


async def test_where_no_connection_can_be_made_for_large_data_it_goes_in_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = zmq.Context.socket

    def exhausted(context: Any, kind: int, *args: Any, **options: Any) -> Any:
        if kind == zmq.DEALER:
            raise zmq.ZMQError(errno.EMFILE)
        return make(context, kind, *args, **options)

    async with Mesh(nodes=2, shared_memory=0) as mesh:
        store, log = await mesh.spawn(Store, node=1), await mesh.spawn(Log, node=1)
        array, text = np.arange(3 * MIB, dtype=np.uint8), bytes(5 * MIB)
        with monkeypatch.context() as patch:
            patch.setattr(zmq.Context, "socket", exhausted)
            for _ in range(3):
                back = await store.echo([array, text])
                np.testing.assert_array_equal(back[0], array)
                assert back[1] == text
        assert await store.size(text) == 5 * MIB
        await log.note("more")
        exchange = mesh._open()[1].exchange
        assert not exchange.pending
        assert not exchange.busy


async def test_data_forwarded_to_a_third_process_arrives() -> None:
    async with Mesh(nodes=3) as mesh:
        first, second = await mesh.spawn(Store, node=1), await mesh.spawn(Store, node=2)
        data = np.arange(3 * MIB, dtype=np.uint32)
        np.testing.assert_array_equal(await first.forward(second, data), data)


async def test_messages_to_one_actor_begin_in_order_whatever_their_size(mesh: Mesh) -> None:
    store = await mesh.spawn(Store, mailbox=100)
    sizes = [10, 5 * MIB, 10, 100_000, 2 * MIB, 10, 9 * MIB, 10, MIB]
    asks: list[Any] = []
    for i in range(40):
        data = np.zeros(sizes[i % len(sizes)], np.uint8)
        if i % 3:
            store.tell.count(i, data)
        else:
            asks.append(asyncio.ensure_future(store.count(i, data)))
            await asyncio.sleep(0)
    await asyncio.gather(*asks)
    assert await store.counted() == list(range(40))


async def test_a_streams_items_arrive_in_order_whatever_their_size(mesh: Mesh) -> None:
    store = await mesh.spawn(Store)
    items = [item async for item in store.stream.produce(30, 3 * MIB)]
    assert [int(item[0]) for item in items] == list(range(30))
    assert [item.nbytes for item in items] == [3 * MIB if i % 2 else 10 for i in range(30)]


async def test_small_messages_pass_large_ones(mesh: Mesh) -> None:
    if mesh.url is not None:
        pytest.skip("both ends of this link share a process, and its loop")
    store = await mesh.spawn(Store)
    counter = await mesh.spawn(Counter)
    large: list[Any] = [np.ones(64 * MIB, np.uint8), bytes(64 * MIB)]
    for value in large:
        await store.size(value)
    for value in large:
        answered = 0
        for _ in range(50):  # a busy machine may let nothing else run while one is on its way
            if answered >= 10:
                break
            answered = 0
            ask = asyncio.ensure_future(store.size(value))
            while not ask.done():
                await counter.add(1)
                answered += 1
            assert await ask == 64 * MIB
        assert answered >= 10


async def test_a_message_over_the_limit_is_refused_and_others_flow() -> None:
    async with Mesh(nodes=2, max_message=8 * MIB) as mesh:
        store = await mesh.spawn(Store)
        for value in (np.zeros(9 * MIB, np.uint8), bytes(9 * MIB), [bytes(5 * MIB)] * 2):
            with pytest.raises(CodecError, match=r"(9437|10485)\d\d\d bytes exceeds .* 8388608 bytes"):
                await store.size(value)
            assert await store.size(bytes(7 * MIB)) == 7 * MIB
        with pytest.raises(CodecError, match="exceeds"):
            await store.make(9 * MIB, 1)
        assert await store.size(b"x") == 1


async def test_tells_are_bounded_in_bytes_at_a_receiver_that_does_not_read(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    held = asyncio.ensure_future(log.hold())
    await log.wait_for("hold begins")
    data: Any = np.zeros(16 * MIB, np.uint8)
    sent = 0
    with contextlib.suppress(MailboxFull):
        for sent in range(20):  # noqa: B007
            log.tell.note(data)
    assert sent == 7  # of 16 MiB and a little, in 128 MiB
    held.cancel()
    assert len(await log.read()) == 2 + sent
    await log.options(wait=True).tell.note(data)
