"""Takes in a request's body before a route sees it: bounded in size, in time and in nesting."""

from __future__ import annotations

import asyncio
import re

import numpy as np
import orjson
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from tinker_actors.gateway.limits import Limits
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.writing import own_path

_SLOWEST = 64 << 10
"""Bytes a second that a body must bring after its time of grace."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)  # possessive: no input makes it go back
_LONG = re.compile(rb"[0-9]{19}")
_INTEGER = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{19,}(?![0-9.eE])")
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_BINARY = ("application/x-protobuf", "application/octet-stream")
_CLOSE = {"Connection": "close"}


class ClientGoneError(Exception):
    """The client hung up before its request was complete: there is nobody to answer."""


async def read_body(scope: Scope, receive: Receive, limits: Limits) -> bytes | None:
    """Take in the whole body; None if the request has none.

    Raises:
        RefusalError: 413, 408, 415 or 400: it is too large, too slow, in an encoding that isn't taken, nested too deep.
        ClientGoneError: Nobody is there any more.
    """
    headers = Headers(scope=scope)
    if "content-length" not in headers and "transfer-encoding" not in headers:
        return None
    encoding = headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", "zstd"):
        raise RefusalError(415, f"Content-Encoding is {encoding!r}; identity and zstd are taken", code="bad_encoding")
    most = limits.body_of(own_path(scope))
    declared = headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise _too_large(most)
    body = await _gather(receive, most, limits)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if encoding == "identity" and kind not in _BINARY:
        if (depth := json_depth(body, limits.json_depth)) > limits.json_depth:
            detail = f"the body is nested {depth} deep; {limits.json_depth} are taken"
            raise RefusalError(400, detail, code="nested_too_deep")
        if kind == "application/json" or kind.endswith("+json"):  # what routes take for JSON
            check_json(body)
    return body


async def _gather(receive: Receive, most: int, limits: Limits) -> bytes:
    pieces: list[bytes] = []
    size, began = 0, asyncio.get_running_loop().time()
    while True:
        due = began + limits.body_grace + size / _SLOWEST
        left = due - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, min(left, limits.body_idle))):
                message = await receive()
        except TimeoutError:
            detail = f"the body came too slowly: {size} bytes, and no more in time"
            raise RefusalError(408, detail, code="too_slow", headers=_CLOSE) from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        piece = message.get("body", b"")
        size += len(piece)
        if size > most:
            raise _too_large(most)
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


def _too_large(most: int) -> RefusalError:
    return RefusalError(413, f"the body has more than {most} bytes", code="body_too_large", headers=_CLOSE)


def replay(body: bytes, receive: Receive) -> Receive:
    """What a route then receives: the body in one piece, and after it what else the client sends."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return left.pop() if left else await receive()

    return received


def check_json(body: bytes) -> None:
    """Refuse what the standard doesn't know, before a lenient parser lets it in: NaN, halves of surrogate pairs; and
    integers beyond 64 bits, which nothing behind can write down again.

    Raises:
        RefusalError: 400; says where it stops being JSON. 422; says which integer is too large.
    """
    if not body:  # for the route to say what it lacks
        return
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusalError(400, f"the body is no JSON: {error}", code="invalid_json") from None
    if _LONG.search(body) is None:
        return
    for found in _INTEGER.finditer(_STRING.sub(b'""', body)):
        digits = found[0].decode()
        if len(digits) > 20 or not _SMALLEST <= int(digits) <= _LARGEST:
            detail = f"the body has the integer {digits[:40]}; {_SMALLEST} to {_LARGEST} are taken"
            raise RefusalError(422, detail, code="invalid_request")


def json_depth(body: bytes, enough: int = 0) -> int:
    """How deep arrays and objects are nested in a JSON text, or an upper bound that is no more than `enough`.

    For any bytes, in time linear in their number; what is no JSON is left to whoever parses it.
    """
    opened = body.count(b"[") + body.count(b"{")
    if opened <= enough:
        return opened
    text = np.frombuffer(_STRING.sub(b"", body), dtype=np.uint8)
    steps = np.zeros(len(text), dtype=np.int32)
    steps[(text == ord("[")) | (text == ord("{"))] = 1
    steps[(text == ord("]")) | (text == ord("}"))] = -1
    return int(np.cumsum(steps).max(initial=0))
