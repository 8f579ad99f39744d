"""Bytes that mean nothing, or almost something: a codec and a live node take 100,000 of them and go on."""

import asyncio
import contextlib
import gc
import random
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo import Colour, Parcel

from tinker_actors.actors import Actor, CodecError, NodeDiedError, RestartPolicy
from tinker_actors.actors import envelope as env
from tinker_actors.actors.codec import DEPTH_LIMIT, INTEGER_LIMIT, OUT_OF_BAND, Codec, Ext
from tinker_actors.actors.control import SYSTEM_IDS
from tinker_actors.actors.directory import make_cell
from tinker_actors.actors.lifecycle import Lifecycle
from tinker_actors.actors.node import Node
from tinker_actors.actors.packing import pack
from tinker_actors.actors.ref import ActorRef, Address
from tinker_actors.actors.restart import RestartHistory
from tinker_actors.actors.tags import TAG_LIMIT

CODEC_INPUTS = 60_000
NODE_INPUTS = 40_000
GROWTH = 24 << 20  # bytes that a process may grow by over all inputs
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
VICTIM, WITNESS = SYSTEM_IDS, 1 << 40


class Victim(Actor):
    """Answers whatever it understands."""

    async def echo(self, value: Any = None, *rest: Any, **named: Any) -> Any:
        return value

    async def count(self, n: Any = 3) -> AsyncIterator[Any]:
        for i in range(min(n, 3)):
            yield i


def address(ident: int) -> Address:
    return Address(mesh="token", id=ident, node=0, name=f"victim-{ident}", kind="Victim", mailbox=64)


class Refs:
    """Refs of a mesh that isn't there."""

    def export_ref(self, ref: ActorRef) -> list[Any]:
        a = ref.address
        return [a.mesh, a.id, a.node, a.name, a.kind, a.mailbox]

    def import_ref(self, parts: list[Any]) -> ActorRef:
        return ActorRef(address(parts[1]), None)  # type: ignore[arg-type]


def frames_of_every_kind() -> list[bytes]:
    """Real envelopes, each alone."""
    codec = Codec(Refs())
    ref = ActorRef(address(VICTIM), None)  # type: ignore[arg-type]
    values: list[Any] = [
        [None, True, -1, 2**70, 1.5, "text", b"bytes", "\ud800"],
        [(1, (2, [3, {"k": {4}, 5: frozenset((6,))}]))],
        [Parcel(weight=1.0, labels=("a", "b")), Colour.RED, RestartPolicy.always()],
        [np.arange(7), np.float32(2.5), np.array(["ab", "c"]), ref],
        [ValueError("v", 1), FileNotFoundError(2, "gone", "f"), ExceptionGroup("g", [KeyError("k")])],
    ]
    meta = [0.5, [[VICTIM + 1, "a.b"]], 0, TRACE]
    whole: list[Any] = []
    for number, value in enumerate(values):
        whole += [
            [env.ASK, number, VICTIM, "echo", value, {"a": 1}, meta],
            [env.ASK, number, VICTIM, "echo", value, None, 0.5],
            [env.ASK, number, VICTIM, "nothing", [], None, None],
            [env.STREAM, number, VICTIM, "count", [2], None, meta, 16],
            [env.TELL, VICTIM, "echo", value, None, TRACE],
            [env.TELL_ALL, [VICTIM, 3], "echo", value, None, None],
            [env.GATHER, number, [VICTIM, 77], "echo", value, None, meta],
            [env.GATHERED, number, [0], [value], [], []],
            [env.REPLY, number, value],
            [env.ITEM, number, value],
            [env.ERROR, number, ValueError(value[0])],
        ]
    whole += [
        [env.END, 1],
        [env.CANCEL, 2],
        [env.CREDIT, 3, 5],
        [env.ACK, [[VICTIM, 1]]],
        [env.NAME, "name", None],
        [env.HELLO, "token", 1, 1, "ipc:///tmp/nowhere", None, 1, 0],
    ]
    return [codec.encode(parts) for parts in whole]


def inputs(seed: int, count: int) -> Iterator[bytes]:
    """Random, mutated, truncated and spliced batches, with the same for every seed."""
    luck = random.Random(seed)
    real = frames_of_every_kind()
    batches = [env.join(luck.sample(real, luck.randrange(1, 5)), ()) for _ in range(200)]
    batches += [env.join([one], ()) for one in real]
    named = [pack(one) for one in ([0, 1, 1, 9, 0, 1 << 20], [1, 7], [2, 5], [9], "x", None)]
    batches += [env.lead([one], env.join([real[0]], [(0, 1)])) for one in named]
    batches += [env.lead(named, env.join([real[0], real[2]], [(0, 2), (1, 4)]))]
    for number in range(count):
        good = luck.choice(batches)
        kind = number % 6
        if kind == 0:
            yield luck.randbytes(luck.randrange(64))
        elif kind == 1:
            yield good[: luck.randrange(len(good))]
        elif kind == 2:
            other = luck.choice(batches)
            yield good[: luck.randrange(len(good))] + other[luck.randrange(len(other)) :]
        elif kind == 3:  # lengths that promise more than there is
            at = luck.randrange(len(good))
            yield good[:at] + luck.choice((b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9")) + luck.randbytes(5) + good[at:]
        else:
            data = bytearray(good)
            for _ in range(luck.randrange(1, 4)):
                data[luck.randrange(len(data))] = luck.randrange(256)
            yield bytes(data)


def test_a_codec_reads_60000_broken_batches_or_refuses_them_without_growing() -> None:
    codec = Codec(Refs())
    process = psutil.Process()
    before = 0
    refused = longest = 0
    slowest = 0.0
    for number, data in enumerate(inputs(1, CODEC_INPUTS)):
        if number == CODEC_INPUTS // 6:
            gc.collect()
            before = process.memory_info().rss
        began = time.thread_time()
        for read in (env.split, env.salvage):
            try:
                read(codec, data, ())
            except CodecError as error:
                refused += 1
                longest = max(longest, len(str(error)))
        slowest = max(slowest, time.thread_time() - began)
    gc.collect()
    assert process.memory_info().rss - before < GROWTH
    assert refused > CODEC_INPUTS / 2
    assert longest < 10_000
    assert slowest < 2.0  # the first tensor or module that a tag names may be imported
    value = [1, (2, {"k": Parcel(weight=1.0, labels=())})]
    assert codec.decode(codec.encode(value)) == value


class Peer:
    """A node's neighbour made of bare sockets, which says whatever it likes."""

    def __init__(self, node: Node, folder: Any) -> None:
        self.node = node
        self.codec = Codec(node)
        self.context = zmq.Context()
        self.url = f"ipc://{folder}/1"
        self.inbound = self.context.socket(zmq.ROUTER)
        self.inbound.bind(self.url)
        self.outbound = self.socket(b"1:1>0:1")
        self.say([env.HELLO, "token", 1, 1, self.url, None, 1, 0])
        self.asked = 1 << 50

    def socket(self, identity: bytes) -> Any:
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.ROUTING_ID, identity)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.connect(self.node.exchange.url)
        return socket

    def say(self, parts: list[Any]) -> None:
        self.outbound.send(env.join([self.codec.encode(parts)], ()))

    async def ask(self, value: Any) -> Any:
        """A good ask among the bad ones; its answer, past all others."""
        self.asked += 1
        self.say([env.ASK, self.asked, WITNESS, "echo", [value], None, None])
        async with asyncio.timeout(60):
            while True:
                try:
                    _, data, *frames = self.inbound.recv_multipart(zmq.DONTWAIT)
                except zmq.Again:
                    await asyncio.sleep(0.001)
                    continue
                if frames:
                    continue
                for parts in env.split(self.codec, data, ()):
                    if parts[:2] == [env.REPLY, self.asked]:
                        return parts[2]

    def close(self) -> None:
        self.context.destroy(linger=0)


@contextlib.asynccontextmanager
async def node_and_peer(folder: Any) -> AsyncIterator[tuple[Node, Peer]]:
    node = Node(mesh="token", index=0, incarnation=1, count=2, max_message=1 << 20)
    node.exchange.listen(f"ipc://{folder}/0")
    for ident in (VICTIM, WITNESS):
        cell = make_cell(node, None, Victim, address(ident))
        await Lifecycle(node, cell, (), {}, RestartHistory(RestartPolicy.always(max_restarts=10**9))).start()
    peer = Peer(node, folder)
    try:
        yield node, peer
    finally:
        peer.close()
        for cell in list(node.cells.values()):
            await cell.life.stop(drain=False)
        node.close()


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield folder


async def test_what_an_ended_node_said_before_is_dropped_and_is_no_bad_message(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad: asyncio.Queue[str] = asyncio.Queue()
    async with node_and_peer(folder) as (node, peer):
        assert await peer.ask("first") == "first"
        monkeypatch.setattr(node.exchange, "bad", lambda _, error: bad.put_nowait(str(error)))
        node.exchange.peer_down(1, 1, NodeDiedError("node 1 was killed"))
        peer.say([env.CANCEL, 1 << 51])
        peer.outbound.send_multipart([env.join([peer.codec.encode([env.CANCEL, 1])], [(0, 1)]), b"a frame"])
        peer.outbound.send(b"what nobody can read")
        assert "hello" not in await bad.get()  # the last message, which nobody can read, is the first bad one


async def test_a_live_node_takes_40000_broken_messages_and_goes_on_serving(folder: Any) -> None:
    process = psutil.Process()
    before = 0
    async with node_and_peer(folder) as (node, peer):
        assert await peer.ask("first") == "first"
        stranger = peer.socket(b"stranger")
        for number, data in enumerate(inputs(2, NODE_INPUTS)):
            (stranger if number % 5 == 0 else peer.outbound).send(data)
            if number % 400 == 0:
                assert await peer.ask(number) == number
            if number == NODE_INPUTS // 4:
                gc.collect()
                before = process.memory_info().rss
        for data in (b"", b"x" * (1 << 21)):  # nothing, and more than a message may have
            peer.outbound.send(data)
        peer.outbound.setsockopt(zmq.LINGER, 1000)
        peer.outbound.close()
        peer.outbound = peer.socket(b"1:1>0:1")
        assert await peer.ask("last") == "last"
        gc.collect()
        assert process.memory_info().rss - before < GROWTH
        assert node.exchange.bad_messages > NODE_INPUTS / 4
        (known,) = node.exchange.peers()
        assert len(known.serving.open) <= 65
        assert not node.exchange.pending
        assert not known.backlog


@given(st.lists(st.binary(max_size=60), max_size=4), st.lists(st.binary(max_size=20), max_size=3))
@settings(max_examples=400, deadline=None)
def test_any_bytes_in_place_of_envelopes_and_frames_are_read_or_refused(
    parts: list[bytes], frames: list[bytes]
) -> None:
    codec = Codec(Refs())
    for data in (env.join(parts, ()), env.join(parts, [(0, len(frames))])):
        for read in (env.split, env.salvage):
            with contextlib.suppress(CodecError):
                read(codec, data, frames)


PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(), st.text(max_size=6), st.binary()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)


@given(st.sampled_from(list(Ext)), PLAIN)
@settings(max_examples=500, deadline=None)
def test_any_plain_data_in_place_of_an_extension_is_read_or_refused(code: Ext, payload: Any) -> None:
    data = pack(payload)
    if len(data) < 256:
        with contextlib.suppress(CodecError):
            Codec(Refs()).decode(b"\xc7" + bytes((len(data), code)) + data)


@given(st.lists(st.lists(PLAIN, max_size=8), max_size=4), st.integers(0, 16))
@settings(max_examples=150, deadline=None)
def test_any_plain_data_in_place_of_an_envelopes_parts_is_read_or_refused(tails: list[list[Any]], kind: int) -> None:
    async def run() -> None:
        import tempfile

        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            async with node_and_peer(folder) as (node, peer):
                await peer.ask(0)
                for tail in tails:
                    length = env.LENGTHS.get(kind, 1) - 1
                    parts = [kind, *(tail + [None] * length)[:length]]
                    node.exchange.receive(b"1:1>0:1", env.join([pack(parts)], ()), ())
                    node.exchange.receive(b"1:1>0:1", env.join([pack([kind, 5, VICTIM, *tail])], ()), ())
                (known,) = node.exchange.peers()
                if known.incarnation == 1 and known.link is not None:
                    assert await peer.ask(1) == 1

    asyncio.run(run())


def test_sizes_depths_and_names_are_bounded_when_read() -> None:
    codec = Codec(Refs())
    torch = pytest.importorskip("torch")

    def ext(code: Ext, data: bytes) -> bytes:
        return b"\xc9" + len(data).to_bytes(4, "big") + bytes((code,)) + data

    tower = pack(None)
    for _ in range(DEPTH_LIMIT + 1):
        tower = ext(Ext.TUPLE, b"\x91" + tower)
    for data in (
        ext(Ext.INTEGER, b"\x01" * (INTEGER_LIMIT + 1)),
        ext(Ext.DATACLASS, pack(["x" * (TAG_LIMIT + 1), []])),
        ext(Ext.ENUM, pack([["a list"], "x"])),
        ext(Ext.TENSOR, pack(["uint8", [1 << 40], b""])),
        ext(Ext.TENSOR, pack(["uint8", [1 << 40], b"x"])),
        ext(Ext.ARRAY, pack(["<f8", [1 << 40], b""])),
        ext(Ext.ARRAY, pack(["O", [1], b"12345678"])),
        ext(Ext.SCALAR, pack(["<f8", b""])),
        ext(Ext.SET, pack([[1]])),
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        tower,
    ):
        with pytest.raises(CodecError) as caught:
            codec.decode(data)
        assert len(str(caught.value)) < 2000
    empty = torch.empty(0, 3)
    assert codec.decode(codec.encode(empty)).shape == empty.shape
    assert len(codec.encode(np.zeros(OUT_OF_BAND, np.uint8), [])) < 200
