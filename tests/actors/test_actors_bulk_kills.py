"""Shared memory when processes are killed, and when a peer lies about it."""

import asyncio
import contextlib
import fcntl
import gc
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from bulk_zoo import Store, arena_maps, named_maps

from tinker_actors.actors import CodecError, Mesh, NodeDiedError, RestartPolicy, packing
from tinker_actors.actors.arena import MARKS, Arena
from tinker_actors.actors.leases import Borrower
from tinker_actors.errors import ActorError

MIB = 1 << 20
ALWAYS = RestartPolicy(max_restarts=1000, backoff=0.01, backoff_max=0.05)


def arena_of(mesh: Mesh) -> Any:
    assert mesh._node is not None
    return mesh._node.exchange.bulk.arena


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            gc.collect()
            await asyncio.sleep(0.002)


async def test_what_a_killed_receiver_had_borrowed_is_used_again() -> None:
    async with Mesh(nodes=2, restart=ALWAYS) as mesh:
        store = await mesh.spawn(Store, restart=ALWAYS)
        arena = arena_of(mesh)
        put = mesh.put(np.ones(MIB, np.uint8))
        await store.keep(np.ones(8 * MIB, np.uint8), np.ones(2 * MIB, np.uint8), put)
        assert arena.used == 11 * MIB
        with contextlib.suppress(NodeDiedError):
            await store.die()
        await until(lambda: arena.used == MIB)
        assert await store.size(put) == MIB


async def test_what_a_killed_sender_had_lent_stays_readable() -> None:
    async with Mesh(nodes=2, restart=ALWAYS) as mesh:
        store = await mesh.spawn(Store, restart=ALWAYS)
        maps = arena_maps()
        array = await store.make(4 * MIB, 7)
        part = (await store.make(4 * MIB, 9))[:100]
        with contextlib.suppress(NodeDiedError):
            await store.die()
        assert (await store.make(4 * MIB, 5)).sum() == 5 * 4 * MIB
        assert array.sum() == 7 * 4 * MIB
        assert part.tolist() == [9] * 100
        del array, part
        await until(lambda: arena_maps() <= maps + 1)


async def test_a_message_whose_receiver_dies_while_it_is_copied_fails_and_frees_its_block() -> None:
    async with Mesh(nodes=2, restart=ALWAYS) as mesh:
        store = await mesh.spawn(Store, restart=ALWAYS)
        data = np.ones(64 * MIB, np.uint8)
        dying = asyncio.ensure_future(store.die())
        sizes = [asyncio.ensure_future(store.size(data)) for _ in range(3)]
        for ask in [dying, *sizes]:
            with contextlib.suppress(NodeDiedError):
                await ask
        await until(lambda: arena_of(mesh).used == 0)
        assert await store.size(data) == 64 * MIB


async def test_an_idle_actor_gives_back_the_answer_that_it_passed_on() -> None:
    async with Mesh(nodes=2) as mesh:
        relay, end = await mesh.spawn(Store, node=1), await mesh.spawn(Store, node=0)
        assert (await relay.forward(end, np.ones(MIB, np.uint8))).size == MIB
        assert await relay.size(b"") == 0
        await until(lambda: arena_of(mesh).used == 0)


class Storm:
    """Actors that send one another large data while the processes that hold them are killed at random moments."""

    KILLS = 6
    SIZES = (100_000, MIB, 3 * MIB, 20 * MIB)

    def __init__(self, mesh: Mesh, stores: list[Store]) -> None:
        self.mesh = mesh
        self.stores = stores
        self.kills: list[int] = []
        self.ends = {"well": 0, "badly": 0}

    async def traffic(self, seed: int) -> None:
        own = random.Random(seed)
        while len(self.kills) < self.KILLS:
            try:
                await self._message(own)
            except ActorError:
                self.ends["badly"] += 1
            else:
                self.ends["well"] += 1

    async def _message(self, own: random.Random) -> None:
        data = np.full(own.choice(self.SIZES), own.randrange(256), np.uint8)
        value: Any = own.choice([data, data.tobytes(), [data, data]])
        # always forwarded upwards: two that forward to each other at once would wait for each other
        store, other = (self.stores[index] for index in sorted(own.sample(range(len(self.stores)), 2)))
        kind = own.randrange(4)
        if kind == 0:
            assert (await store.make(data.size, 3)).sum() == 3 * data.size
        elif kind == 1:
            store.tell.keep(value)
            await store.drop()
        elif kind == 2:
            back = await store.forward(other, data)
            assert back.size == data.size
            assert back[0] == back[-1] == data[0]
        else:
            await store.echo(value)

    async def kill(self) -> None:
        chance = random.Random(1)
        while len(self.kills) < self.KILLS:
            await asyncio.sleep(chance.uniform(0.05, 0.45))
            self.kills.append(chance.choice(list(self.mesh.pids.values())))
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.kills[-1], 9)


async def answer(ask: Callable[[], Awaitable[Any]]) -> Any:
    """What an actor answers once no kill comes between."""
    while True:
        try:
            return await ask()
        except NodeDiedError:
            pass


async def check_memory(mesh: Mesh, stores: list[Store], limit: int) -> None:
    """Nothing is lent any more here, and the children map no more than the three processes' segments."""
    segments = 3 * (limit // MIB // 32)
    for store in stores:
        await answer(store.drop)
    arena = arena_of(mesh)
    if arena is not None:
        await until(lambda: arena.used == 0)
        assert arena.size <= limit
        # Besides its own segments this process maps those of the two living children.
        await until(lambda: arena_maps() <= segments)
    for store in stores[:2]:  # of either child
        states = [await store.state()]
        while len(states) < 500 and states[-1][1] > segments:  # until it has heard of the other's end
            await asyncio.sleep(0.01)
            states.append(await store.state())
        descriptors, maps, named, resident = states[-1]
        assert descriptors < 80
        assert maps <= segments
        assert named == 0
        assert resident < 1024 * MIB


@pytest.mark.parametrize("shared_memory", [192 * MIB, 0], ids=["shared memory", "chunks"])
async def test_a_storm_of_kills_leaves_nothing(shared_memory: int) -> None:
    named = named_maps()
    async with Mesh(nodes=3, restart=ALWAYS, shared_memory=shared_memory) as mesh:
        stores = [await mesh.spawn(Store, node=1 + i % 2, restart=ALWAYS, mailbox=64) for i in range(4)]
        for store in stores:
            await store.echo(np.ones(MIB, np.uint8))
        before = len(os.listdir("/proc/self/fd"))
        storm = Storm(mesh, stores)
        async with asyncio.timeout(90):
            await asyncio.gather(storm.kill(), *(storm.traffic(seed) for seed in range(6)))
        assert storm.ends["well"] > 5
        assert storm.ends["badly"] > 2
        await check_memory(mesh, stores, shared_memory)
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before + 24)
    await until(lambda: arena_maps() == 0)
    assert named_maps() <= named


def test_a_peer_opens_only_what_was_offered() -> None:
    loop = asyncio.new_event_loop()
    arena = Arena(loop, 64 * MIB)
    returned: list[list[int]] = []
    borrower = Borrower(loop, returned.append)
    block = arena.allocate(MIB)
    assert block is not None
    block.root(MIB)[:] = 7
    segment = block.segment
    with pytest.raises(CodecError, match="has not offered"):
        borrower.borrow(1, segment.id, segment.fd, block.offset, MIB)
    assert not borrower.accept(os.getpid(), 0, arena.name)
    assert not borrower.accept(2**22, arena.probe, arena.name)
    assert not borrower.accept(os.getpid(), arena.probe, "tinker-actors-other")
    assert borrower.accept(os.getpid(), arena.probe, arena.name)
    loan = borrower.borrow(1, segment.id, segment.fd, block.offset, MIB)
    assert bytes(loan.shared()[:3]) == b"\7\7\7"
    with pytest.raises(CodecError, match="is not"):
        borrower.borrow(2, 99, 0, 0, MIB)
    for offset, size in ((-1, 10), (0, 0), (segment.size + MARKS - 10, 11), (0, 2**40)):
        with pytest.raises(CodecError, match="lends bytes"):
            borrower.borrow(3, segment.id, segment.fd, offset, size)
    del loan
    loop.run_until_complete(asyncio.sleep(0))
    assert returned == [[1]]
    borrower.close()
    arena.close()
    loop.close()


def test_an_arena_is_sealed_against_resizing_and_new_writers() -> None:
    loop = asyncio.new_event_loop()
    arena = Arena(loop, 64 * MIB)
    block = arena.allocate(MIB)
    assert block is not None
    fd = block.segment.fd
    for size in (0, 2 * block.segment.size):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    assert fcntl.fcntl(fd, 1034) & 0x1F == 0x17
    arena.close()
    loop.close()


def test_a_peers_unsealed_memory_is_refused() -> None:
    loop = asyncio.new_event_loop()
    probe = os.memfd_create("x-probe")
    loose = os.memfd_create("x-1")
    os.ftruncate(loose, MIB)
    borrower = Borrower(loop, lambda leases: None)
    assert borrower.accept(os.getpid(), probe, "x")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CodecError, match="not sealed"):
        borrower.borrow(1, 1, loose, 0, MIB)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(probe)
    os.close(loose)
    loop.close()


async def test_descriptors_that_mean_nothing_are_the_askers_error_and_nothing_breaks() -> None:
    async with Mesh(nodes=2) as mesh:
        store = await mesh.spawn(Store)
        node = mesh._node
        assert node is not None
        exchange = node.exchange
        lane = exchange.by_index[1].lane
        assert lane is not None
        put = lane.put
        for descriptor in ([0, 1, 2, 3, 4, 5], [1, 77], [2, 5], [9], ["x"], [], [0, "a"], 7, [0, 1, 1, -1, 0, 1]):
            bad = packing.pack(descriptor)

            def lie(data: bytes, frames: Any, keys: Any, bad: bytes = bad, **_: Any) -> None:
                exchange.by_index[1].link.put(data, [bad])  # pyright: ignore[reportOptionalMemberAccess]

            lane.put = lie  # pyright: ignore[reportAttributeAccessIssue]
            with pytest.raises(CodecError):
                await store.size(np.ones(MIB, np.uint8))
        lane.put = put
        for kind, value in (
            (3, 5),
            (5, [1, 2]),
            (99, None),
            (7, [1, 1]),
            (4, []),
            (8, [1, 2, 3, 4, 5]),
            (2, 9),
            ("", 0),
        ):
            exchange.send(1, [16, kind, value])
        assert await store.size(np.ones(MIB, np.uint8)) == MIB
