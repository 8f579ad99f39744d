"""How much one request, one tenant and one address may ask for."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp

from tinker_actors.gateway.admission import Admission
from tinker_actors.gateway.bodies import json_depth
from tinker_actors.gateway.gate import Gate
from tinker_actors.gateway.limits import Buckets, Limiter, Limits
from tinker_actors.gateway.tinker.prompts import MOST_PARTS, Prompt
from tinker_actors.gateway.wire import HEAD_BYTES, GuardedProtocol


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


# -------------------------------------------------------------------------------------------------- token buckets


def test_a_bucket_gives_a_burst_and_then_its_rate():
    clock = Clock()
    buckets = Buckets(2.0, 3, clock=clock)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.take("b") == 0
    clock.now = 0.5
    assert [buckets.take("a") for _ in range(2)] == [0, 0.5]
    clock.now = 1000.0
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]


def test_buckets_of_very_many_who_ask_take_bounded_memory():
    buckets = Buckets(1.0, 1, most=10, clock=Clock())
    for number in range(1000):
        assert buckets.take(str(number)) == 0
    assert buckets.take("999") > 0
    assert len(buckets._held) == 10


def test_limits_that_can_not_be_are_refused_by_name():
    for name, value in {"body_bytes": 0, "requests": float("inf"), "no_such": 1}.items():
        with pytest.raises(ValidationError, match=name):
            Limits.model_validate({name: value})


# ------------------------------------------------------------------------------------------------- through the gate


def application(limits: Limits, *, clock: Clock | None = None, hold: asyncio.Event | None = None) -> FastAPI:
    app = FastAPI()

    @app.post("/{path:path}")
    async def size(request: Request) -> Response:
        if hold is not None:
            await hold.wait()
        return Response(str(len(await request.body())))

    @app.get("/stream")
    async def stream() -> Response:
        return StreamingResponse(itertools.repeat(b"x" * 65536, 4000))

    limiter = Limiter(limits) if clock is None else Limiter(limits, clock=clock)
    app.add_middleware(Gate, admit=Admission(), limiter=limiter)
    return app


@asynccontextmanager
async def asking(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


async def test_a_body_is_taken_up_to_its_limit_whether_or_not_it_says_its_size():
    async def pieces(size: int) -> AsyncIterator[bytes]:
        for _ in range(size):
            yield b"x"

    limits = Limits(body_bytes=10, large_body_bytes=20)
    async with asking(application(limits)) as client:
        for path, most in (("/api/v1/create_session", 10), ("/api/v1/forward_backward", 20), ("/jobs/v1/uploads", 20)):
            assert (await client.post(path, content=b"x" * most)).text == str(most)
            assert (await client.post(path, content=pieces(most))).text == str(most)
            for content in (b"x" * (most + 1), pieces(most + 1)):
                refused = await client.post(path, content=content)
                assert refused.status_code == 413
                assert refused.headers["connection"] == "close"


async def test_a_body_that_names_things_and_sets_options_is_small():
    limits = Limits(small_body_bytes=10, body_bytes=20, large_body_bytes=30)
    most = {
        "/api/v1/create_session": 10,
        "/jobs/v1/jobs": 10,
        "/jobs/v1/jobs/x/cancel": 10,
        "/api/v1/asample": 20,
        "/api/v1/forward": 20,
        "/api/v1/telemetry": 20,
        "/v1/chat/completions": 20,
        "/api/v1/forward_backward": 30,
        "/jobs/v1/uploads": 30,
    }
    async with asking(application(limits)) as client:
        for path, size in most.items():
            codes = [(await client.post(path, content=b"x" * count)).status_code for count in (size, size + 1)]
            assert (path, codes) == (path, [200, 413])


async def test_bodies_under_way_take_bounded_memory():
    hold = asyncio.Event()
    async with asking(application(Limits(bodies_bytes=10), hold=hold)) as client:
        both = [asyncio.create_task(client.post("/a", content=b"x" * 6)) for _ in range(2)]
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().json()["code"] for task in done] == ["overloaded"]
        hold.set()
        assert sorted([(await task).status_code for task in both]) == [200, 503]
        assert (await client.post("/a", content=b"x" * 6)).text == "6"


async def test_heads_that_are_too_large_are_refused():
    async with asking(application(Limits(url_bytes=50, header_bytes=400))) as client:
        assert (await client.post("/" + "x" * 60)).status_code == 414
        assert (await client.post("/?q=" + "x" * 60)).status_code == 414
        assert (await client.post("/", headers={"x": "y" * 400})).status_code == 431


async def test_other_encodings_than_zstd_and_deep_nesting_are_refused():
    async with asking(application(Limits(json_depth=5))) as client:
        assert (await client.post("/", content=b"x", headers={"Content-Encoding": "gzip"})).status_code == 415
        assert (await client.post("/", content=b"x", headers={"Content-Encoding": "zstd"})).status_code == 200
        assert (await client.post("/", content=b"[" * 5 + b"]" * 5)).status_code == 200
        refused = await client.post("/", content=b"[" * 6)
        assert (refused.status_code, refused.json()["code"]) == (400, "nested_too_deep")
        binary = {"Content-Type": "application/x-protobuf"}
        assert (await client.post("/", content=b"[" * 6, headers=binary)).status_code == 200


@pytest.mark.parametrize(
    "body", [b'{"a": NaN}', b'{"a": "\\ud800"}', b'{"a": "\xff"}', b'{"a": 1', b"[1,]", b"\xef\xbb\xbf{}"]
)
async def test_what_is_called_json_is_json(body: bytes):
    async with asking(application(Limits())) as client:
        refused = await client.post("/", content=body, headers={"Content-Type": "application/json"})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_json")
        assert (await client.post("/", content=b"", headers={"Content-Type": "application/json"})).status_code == 200


@pytest.mark.parametrize(
    "kind", ["Application/JSON", "application/json;charset=utf-8", "application/x+json", "application/x-protobuf+json"]
)
async def test_whatever_routes_take_for_json_is_checked(kind: str):
    async with asking(application(Limits(json_depth=5))) as client:
        for body in (b'{"a": NaN}', b"[" * 6 + b"]" * 6):
            assert (await client.post("/", content=body, headers={"Content-Type": kind})).status_code == 400


@pytest.mark.parametrize(
    ("number", "taken"),
    [
        (str(2**64 - 1), True),
        (str(-(2**63)), True),
        ("1" * 30 + ".5", True),
        ("0." + "1" * 30, True),
        ("1" + "0" * 30 + "e1", True),
        ('"' + "9" * 30 + '"', True),
        (str(2**64), False),
        (str(-(2**63) - 1), False),
        ("9" * 300, False),
        ("-" + "9" * 300, False),
    ],
)
async def test_integers_have_64_bits(number: str, taken: bool):
    json_kind = {"Content-Type": "application/json"}
    async with asking(application(Limits())) as client:
        for body in (number, f"[0,{number}]", f'{{"a\\"": {number}}}'):
            answer = await client.post("/", content=body, headers=json_kind)
            assert answer.status_code == (200 if taken else 422), body
            assert taken or number[:20] in answer.json()["detail"]


def test_a_prompt_has_so_many_parts():
    part = {"type": "encoded_text", "tokens": []}
    assert len(Prompt.model_validate({"chunks": [part] * MOST_PARTS}).chunks) == MOST_PARTS
    with pytest.raises(ValidationError, match=f"at most {MOST_PARTS} items"):
        Prompt.model_validate({"chunks": [part] * (MOST_PARTS + 1)})


_VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='[]{}"\\a'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='[{"\\'), inner),
    max_leaves=20,
)


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


@given(_VALUES)
def test_the_depth_of_any_json_is_its_depth(value: object):
    assert json_depth(json.dumps(value).encode()) == _depth(value)


@pytest.mark.parametrize("unit", [b'"', b'\\"', b'"\\', b"[", b'["', b'"\\"', b"\\"])
def test_no_bytes_make_the_depth_take_long(unit: bytes):
    import time

    began = time.process_time()
    json_depth(unit * (2_000_000 // len(unit)) + b"\\")
    assert time.process_time() - began < 2.0  # linear: some 30 ms; quadratic would be hours


async def test_a_tenant_that_asks_too_often_is_told_when_to_come_back_and_its_polls_are_apart():
    clock = Clock()
    limits = Limits(requests=0.5, requests_burst=2, polls=1, polls_burst=3)
    async with asking(application(limits, clock=clock)) as client:
        assert [(await client.post("/api/v1/asample")).status_code for _ in range(3)] == [200, 200, 429]
        refused = await client.post("/api/v1/asample")
        assert (refused.json()["code"], refused.headers["retry-after"]) == ("rate_limited", "2")
        polls = [(await client.post("/api/v1/retrieve_future")).status_code for _ in range(4)]
        assert polls == [200, 200, 200, 429]
        clock.now = 2.0
        assert (await client.post("/api/v1/asample")).status_code == 200


async def test_an_address_is_held_back_before_anybody_looks_for_its_key():
    clock = Clock()
    app = application(Limits(address_requests=1, address_burst=2), clock=clock)
    transport = httpx.ASGITransport(app, client=("2001:db8::1", 1))
    neighbour = httpx.ASGITransport(app, client=("2001:db8::2", 1))
    other = httpx.ASGITransport(app, client=("2001:db8:0:1::1", 1))
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        httpx.AsyncClient(transport=neighbour, base_url="http://localhost") as second,
        httpx.AsyncClient(transport=other, base_url="http://localhost") as third,
    ):
        assert [(await client.post("/x")).status_code for _ in range(2)] == [403, 403]
        assert (await second.post("/x")).status_code == 429
        assert (await third.post("/x")).status_code == 403


async def test_requests_under_way_are_bounded_and_polls_apart():
    hold = asyncio.Event()
    async with asking(application(Limits(concurrent=1, concurrent_polls=1), hold=hold)) as client:
        paths = ["/api/v1/asample", "/api/v1/asample", "/api/v1/retrieve_future", "/api/v1/retrieve_future"]
        under_way = [asyncio.create_task(client.post(path, content=b"")) for path in paths]
        done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result().json()["code"] for task in done} == {"too_many_at_once"}
        hold.set()
        assert sorted([(await task).status_code for task in under_way]) == [200, 200, 429, 429]
        assert (await client.post("/api/v1/asample", content=b"")).status_code == 200


# ------------------------------------------------------------------------------------------------ on a real socket


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@asynccontextmanager
async def served(app: ASGIApp, listener: socket.socket, protocol: type = GuardedProtocol) -> AsyncIterator[int]:
    config = uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_config=None)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    try:
        yield listener.getsockname()[1]
    finally:
        await server.shutdown(sockets=[listener])


async def test_a_body_that_trickles_is_refused(listener: socket.socket):
    async with served(application(Limits(body_idle=0.2)), listener) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"3 bytes" in answer
        writer.close()


async def test_a_body_that_keeps_trickling_is_refused_in_the_end(listener: socket.socket):
    async with served(application(Limits(body_grace=0.2)), listener) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        answer = asyncio.create_task(reader.readuntil(b"\r\n"))
        while not answer.done():
            writer.write(b"x")
            await asyncio.wait([answer], timeout=0.01)
        assert (await answer).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_a_head_that_trickles_or_never_ends_is_cut_off(listener: socket.socket):
    class Hasty(GuardedProtocol):
        head_seconds = 0.2

    async with served(application(Limits()), listener, Hasty) as port:
        for begun in (b"", b"POST / HTTP/1.1\r\nHost: localhost\r\nX-"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begun)
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.close()
        # and a connection that has had its answer may be idle for longer than a head may take
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
        for _ in range(2):
            writer.write(request)
            assert (await reader.readuntil(b"\r\n\r\n1")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_head_that_never_ends_is_refused_at_its_bound(listener: socket.socket):
    async with served(application(Limits()), listener) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nX-Endless: ")
        answer = asyncio.create_task(reader.read(12))
        sent = 0
        while not answer.done():
            writer.write(b"x" * 4096)
            sent += 4096
            await writer.drain()
            await asyncio.wait([answer], timeout=0.01)
        assert await answer == b"HTTP/1.1 431"
        assert sent < 8 * HEAD_BYTES
        writer.close()


async def test_a_reader_that_takes_nothing_is_let_go(listener: socket.socket):
    limits = Limits(send_idle=0.2, concurrent=1)
    async with served(application(limits), listener) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n")
        writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            while (await client.post("/", content=b"x")).status_code == 429:
                pass  # until its place is free again
        writer.close()
