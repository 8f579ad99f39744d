"""The short way of plain asks between processes: it must not differ from the long one in anything but cost."""

import gc
import time
import tracemalloc
from typing import Any

import pytest
from bulk_zoo import Store
from hypothesis import given
from hypothesis import strategies as st
from late_asks import ask_late
from zoo import Log

from tinker_actors.actors import Mesh, asking, deadlines
from tinker_actors.actors.codec import Codec

plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(codec=None)), st.binary(max_size=100)
)


@given(st.lists(plain, max_size=5))
def test_plain_values_are_written_byte_for_byte_as_the_codec_does(values: list[Any]) -> None:
    codec = Codec()
    parts = [3, 17, 5000, "add", values, None, 60.0]
    try:
        data = codec.write((*parts[:4], tuple(values), *parts[5:]))
    except (OverflowError, UnicodeEncodeError):  # integers of more than 64 bits, lone surrogates: the long way
        assert codec.decode(codec.encode(parts)) == parts
    else:
        assert data == codec.encode(parts)


async def test_values_arrive_as_they_left_whichever_way_they_take() -> None:
    values = [
        True,
        2**63,
        -(2**64),
        2**200,
        "\udc80",
        b"x" * 65_535,
        b"x" * 65_536,
        "x" * 70_000,
        (1, 2),
        [(2,)],
        {1: 2},
    ]
    async with Mesh(nodes=2) as mesh:
        store = await mesh.spawn(Store, node=1)
        for value in values:
            for back in (await store.echo(value), await store.echo(value=value)):
                assert back == value
                assert type(back) is type(value)


async def test_a_deadline_that_is_far_away_when_the_ask_leaves_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "SWEEP", 0.02)
    monkeypatch.setattr(deadlines, "FAR", 0.04)
    monkeypatch.setattr(asking, "FAR", 0.04)
    async with Mesh(nodes=2) as mesh:
        log = await mesh.spawn(Log, node=1)

        async def hold(seconds: float) -> None:
            began = time.monotonic()
            try:
                await log.options(timeout=seconds).hold()
            finally:
                assert time.monotonic() - began >= seconds

        assert "Log-1.hold" in str(await ask_late(hold, log))
        await log.wait_for("hold cancelled")


async def test_an_answered_ask_meets_no_timer() -> None:
    async with Mesh(nodes=2) as mesh:
        store = await mesh.spawn(Store, node=1)
        node = mesh._open()[1]
        assert await store.options(timeout=60.0).echo(1) == 1
        assert not node.timer._buckets
        assert node.exchange.far.is_awake


async def test_a_ref_keeps_little_of_what_sends_its_asks() -> None:
    async with Mesh(nodes=2) as mesh:
        store = await mesh.spawn(Store, node=1)
        await store.echo(0)
        refs: list[Any] = [store.options(timeout=10.0 + i) for i in range(100)]
        gc.collect()
        tracemalloc.start()
        try:
            for i, ref in enumerate(refs):
                assert await ref.echo(i) == i
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept / len(refs) < 1000
