"""The codec and the envelopes: exact round trips, bounds, and bytes that mean nothing."""

import asyncio
import contextlib
import dataclasses
import enum
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from zoo import Colour, Log, Parcel, RegisteredError, UnregisteredError

from tinker_actors.actors import CodecError, DeadlineExceeded, Mesh, NodeDiedError, RemoteError, wire
from tinker_actors.actors import envelope as env
from tinker_actors.actors.codec import OUT_OF_BAND, Codec
from tinker_actors.actors.restart import RestartPolicy

KEYS = st.one_of(st.integers(-(2**63), 2**64 - 1), st.text(max_size=8), st.booleans(), st.tuples(st.integers(0, 9)))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**200), 2**200),
    st.floats(allow_nan=False),
    st.text(alphabet=st.characters(exclude_categories=()), max_size=20),
    st.binary(max_size=20),
    st.sampled_from(Colour),
    st.builds(Parcel, weight=st.floats(allow_nan=False), labels=st.tuples(st.text(max_size=5))),
    st.frozensets(st.integers(), max_size=4),
    st.sets(st.text(max_size=3), max_size=4),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
    ),
    max_leaves=20,
)


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(map(same, a.values(), b.values()))
    return a == b


@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_values_come_back_with_their_exact_types(value: Any) -> None:
    codec = Codec()
    frames: list[Any] = []
    assert same(codec.decode(codec.encode(value, frames), frames), value)


@given(
    hnp.arrays(
        st.one_of(hnp.scalar_dtypes(), hnp.unicode_string_dtypes(max_len=4)),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    )
)
@settings(max_examples=150, deadline=None)
def test_arrays_keep_dtype_shape_and_bits(array: np.ndarray) -> None:
    codec = Codec()
    back = codec.decode(codec.encode(array))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def test_large_arrays_travel_as_frames_without_a_copy() -> None:
    codec = Codec()
    array = np.arange(OUT_OF_BAND, dtype=np.uint8)
    frames: list[Any] = []
    data = codec.encode([array, {"again": (array,)}], frames)
    assert len(data) < 200
    assert [np.shares_memory(np.asarray(frame), array) for frame in frames] == [True, True]
    back = codec.decode(data, frames)
    np.testing.assert_array_equal(back[1]["again"][0], array)


def test_arrays_that_are_not_contiguous_or_of_another_byte_order_arrive_equal() -> None:
    codec = Codec()
    for array in (np.arange(12).reshape(3, 4).T[::2], np.arange(4, dtype=">i4"), np.array(7.5), np.float32(1.5)):
        back = codec.decode(codec.encode(array))
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


def test_tensors_keep_type_and_shape_and_need_no_numpy_type_of_their_own() -> None:
    torch = pytest.importorskip("torch")
    codec = Codec()
    large = torch.randn(200, 200)
    for tensor in (torch.ones(2, 3, dtype=torch.bfloat16), torch.tensor(4), torch.zeros(0, 2), large, large.T):
        frames: list[Any] = []
        back = codec.decode(codec.encode(tensor, frames), frames)
        assert back.dtype == tensor.dtype
        assert torch.equal(back, tensor)


def test_objects_and_unregistered_classes_are_refused_with_advice() -> None:
    @dataclasses.dataclass
    class Stranger:
        x: int

    codec = Codec()
    for value in (object(), Stranger(1), np.array([object()]), lambda: None, 1j):
        with pytest.raises(CodecError):
            codec.encode([value])
    with pytest.raises(CodecError, match="@wire"):
        codec.encode(Stranger(1))
    assert codec.decode(codec.encode([1])) == [1]


def test_a_named_tuple_or_a_subclass_of_a_builtin_is_refused_rather_than_changed() -> None:
    class Special(dict):
        pass

    with pytest.raises(CodecError):
        Codec().encode(Special(a=1))


def test_wire_refuses_other_classes_and_taken_tags() -> None:
    with pytest.raises(TypeError, match="dataclass"):
        wire(type("Plain", (), {}))

    @wire(tag="test:one")
    class One(enum.Enum):
        A = 1

    with pytest.raises(ValueError, match="belongs to"):

        @wire(tag="test:one")
        class Two(enum.Enum):
            A = 1

    codec = Codec()
    assert codec.decode(codec.encode(One.A)) is One.A


def test_dataclasses_of_this_package_cross_without_registration() -> None:
    codec = Codec()
    policy = RestartPolicy.always(max_restarts=2)
    assert codec.decode(codec.encode(policy)) == policy


def test_a_dataclass_is_checked_by_its_constructor_when_it_is_read() -> None:
    codec = Codec()
    data = codec.encode(RestartPolicy(max_restarts=77)).replace(bytes([77]), bytes([0xFF]))
    with pytest.raises(CodecError, match="max_restarts"):
        codec.decode(data)


def test_errors_keep_type_arguments_attributes_and_traceback() -> None:
    codec = Codec()
    errors: list[Exception] = [
        ValueError("a", 1),
        KeyError("k"),
        FileNotFoundError(2, "gone", "name"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        DeadlineExceeded("late"),
        NodeDiedError("died", "tail"),
        RegisteredError("m", 3),
        ExceptionGroup("g", [ValueError("x"), ExceptionGroup("h", [TypeError("y")])]),
        ValueError(object),
    ]
    for error in errors:
        try:
            raise error
        except Exception as raised:  # the errors are of all types, and raised for their tracebacks
            back = codec.decode(codec.encode(raised))
        assert type(back) is type(error)
        if error is not errors[-1]:
            assert str(back) == str(error)
        assert "test_errors_keep_type" in str(back.__cause__)
    assert codec.decode(codec.encode(NodeDiedError("died", "tail"))).log_tail == "tail"
    assert codec.decode(codec.encode(RegisteredError("m", 3))).code == 3
    foreign = codec.decode(codec.encode(UnregisteredError("odd")))
    assert isinstance(foreign, RemoteError)
    assert (foreign.type_name, foreign.message) == ("zoo.UnregisteredError", "odd")


@pytest.mark.parametrize("wrap", [lambda x: (x,), lambda x: [x], lambda x: {"a": x}])
def test_depth_is_bounded_when_written_and_when_read(wrap: Any) -> None:
    codec = Codec()
    value: Any = 1
    for _ in range(3000):
        value = wrap(value)
    with pytest.raises(CodecError):
        codec.encode(value)
    with pytest.raises(CodecError):
        codec.decode(b"\x91" * 5000 + b"\x01")
    nested = b"\xc0"
    for _ in range(100):
        nested = b"\xc8" + (len(nested) + 1).to_bytes(2, "big") + b"\x01\x91" + nested
    with pytest.raises(CodecError):
        codec.decode(nested)
    assert codec.decode(codec.encode((1,))) == (1,)


def test_missing_and_superfluous_frames_are_refused() -> None:
    codec = Codec()
    frames: list[Any] = []
    data = codec.encode(np.zeros(OUT_OF_BAND), frames)
    with pytest.raises(CodecError, match="did not come"):
        codec.decode(data)
    with pytest.raises(CodecError, match="more frames"):
        codec.decode(data, [*frames, b""])


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_random_bytes_only_ever_raise_codec_error(data: bytes) -> None:
    codec = Codec()
    for read in (codec.decode, lambda data: env.salvage(codec, data, ())):
        with contextlib.suppress(CodecError):
            read(data)


def test_mutated_messages_only_ever_raise_codec_error() -> None:
    codec = Codec()
    value = [3, 7, 99, "m", [(1, 2), Parcel(weight=1.0, labels=("a",)), np.arange(5), ValueError("x")], {"k": {1}}]
    good = env.join([codec.encode(value)] * 3, ())
    luck = random.Random(0)
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(luck.randrange(1, 4)):
            data[luck.randrange(len(data))] = luck.randrange(256)
        data = data[: luck.randrange(len(data) + 1)]
        for read in (env.split, env.salvage):
            with contextlib.suppress(CodecError):
                read(codec, bytes(data), ())


def test_one_unreadable_envelope_does_not_cost_the_others_of_its_batch() -> None:
    codec = Codec()
    parts = [codec.encode([env.REPLY, i, Parcel(weight=i, labels=())]) for i in range(3)]
    parts[1] = parts[1].replace(b"zoo:Parcel", b"zoo:Pascal")
    with pytest.raises(CodecError):
        env.split(codec, env.join(parts, ()), ())
    saved = env.salvage(codec, env.join(parts, ()), ())
    assert [saved[0][2].weight, saved[2][2].weight] == [0, 2]
    assert isinstance(saved[1], env.Unreadable)
    assert saved[1].head[:2] == [env.REPLY, 1]
    assert "Pascal" in str(saved[1].error)


async def test_bad_messages_are_counted_and_dropped_and_strangers_get_nowhere() -> None:
    import zmq

    async with Mesh(nodes=2) as mesh:
        log = await mesh.spawn(Log, node=0, name="log")
        node = mesh._open()[1]
        await (await mesh.spawn(Log)).read()
        context = zmq.Context()
        codec = Codec()

        def send(identity: bytes, *parts: bytes) -> None:
            with context.socket(zmq.DEALER) as socket:
                socket.setsockopt(zmq.ROUTING_ID, identity)
                socket.setsockopt(zmq.LINGER, 1000)
                socket.connect(node.exchange.url)
                socket.send_multipart(parts)

        tell = codec.encode([env.TELL, log.address.id, "note", ["forged"], None, None])
        send(b"stranger", b"\xc1garbage")
        send(b"stranger2", b"")
        send(b"stranger3", env.join([tell], ()))
        hello = [1, 9, "ipc:///nowhere", None, 1, 0]
        send(b"1:9>0:1", env.join([codec.encode([env.HELLO, "wrong token", *hello]), tell], ()))
        send(b"1:9>0:2", env.join([codec.encode([env.HELLO, node.mesh, *hello]), tell], ()))
        send(b"1:8>0:1", env.join([codec.encode([env.HELLO, node.mesh, *hello]), tell], ()))
        send(b"stranger4", b"a", b"b", b"c")
        while node.exchange.bad_messages < 9:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        context.term()
        assert await log.read() == []
        assert await (await mesh.spawn(Log)).read() == []


async def test_a_cancel_that_arrives_before_its_request_still_cancels_it() -> None:
    async with Mesh(nodes=2) as mesh:
        node = mesh._open()[1]
        log = await mesh.spawn(Log, node=0)
        from tinker_actors.actors.serving import Serving

        serving = Serving(node, node.exchange.by_index[1])
        await log.read()  # from here on the actor is idle
        serving.cancel(12345)
        serving.answer([env.ASK, 12345, log.address.id, "note", ["late"], None, None])
        serving.answer([env.ASK, 12346, log.address.id, "note", ["kept"], None, None])
        assert await log.read() == ["kept"]


async def test_a_cancel_that_crossed_its_answer_slows_no_later_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Mesh(nodes=2) as mesh:
        node = mesh._open()[1]
        log = await mesh.spawn(Log, node=0)
        from tinker_actors.actors.serving import Serving

        serving = Serving(node, node.exchange.by_index[1])
        await log.read()
        serving.cancel(12345)  # which was answered, and will never come
        slow: list[object] = []
        monkeypatch.setattr(serving, "ask", slow.append)
        serving.answer([env.ASK, 12346, log.address.id, "note", ["short"], None, None])
        assert not slow
        assert await log.read() == ["short"]


def test_large_arrays_of_one_shape_arrive_equal_whatever_their_layout() -> None:
    """The head of what was sent before is used again; the elements never are."""
    codec, reader = Codec(), Codec()
    plain = np.arange(40_000, dtype=np.float32).reshape(200, 200)
    layouts = [
        plain,
        plain + 1,
        plain.T,
        plain[::-1],
        plain.astype(">f4"),
        plain.astype(np.int32),
        plain.reshape(400, 100),
    ]
    for array in [*layouts, *layouts]:
        frames: list[Any] = []
        back = reader.decode(codec.encode([array], frames), frames)[0]
        assert len(frames) == 1
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(back, array)
        with pytest.raises(CodecError, match="did not come"):
            reader.decode(codec.encode([array], []))
    for number in range(200):  # more shapes than are kept
        array = np.zeros((70_000 + number,), np.uint8)
        frames = []
        assert reader.decode(codec.encode(array, frames), frames).shape == array.shape
