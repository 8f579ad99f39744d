"""Fetching the answers of requests that take longer than a request."""

from __future__ import annotations

import asyncio
from typing import Annotated

import orjson
from fastapi import APIRouter, Header
from starlette.responses import Response

from tinker_actors.gateway.caller import CallerOf, needs
from tinker_actors.gateway.futures import Answer
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.tinker.shared import Body
from tinker_actors.gateway.writing import json_response

router = APIRouter(dependencies=[needs("train", "sample")])

HELD = 30.0
"""Seconds that a fetch waits for its answer; the client's library gives up after 45 and asks again at once."""

INLINE = 2**20
"""Bytes of an answer above which a client that asks for it first hears how many there are, to make room for them."""


class Retrieve(Body):
    """Which answer."""

    request_id: str
    allow_metadata_only: bool = False


@router.post("/retrieve_future")
async def retrieve_future(
    body: Retrieve, caller: CallerOf, gateway: GatewayOf, accept: Annotated[str, Header()] = "application/json"
) -> Response:
    """Wait for an answer; 408 says that it isn't there yet."""
    future = gateway.futures.find(caller, body.request_id)
    if not await future.settled(HELD) or future.answer is None:
        waiting = {"type": "try_again", "request_id": body.request_id, "queue_state": "active"}
        return json_response({**waiting, "queue_state_reason": None}, 408)
    answer = future.answer
    if body.allow_metadata_only and len(answer.content) > INLINE:
        size = {"status": "complete_metadata", "response_payload_size": len(answer.content)}
        return json_response({**size, "request_id": body.request_id})
    gateway.futures.fetched(future)
    return await _written(answer, accept)


async def _written(answer: Answer, accept: str) -> Response:
    if answer.plain is not None and "application/x-protobuf" not in accept:
        content = await asyncio.to_thread(lambda plain: orjson.dumps(plain()), answer.plain)
        return Response(content, media_type="application/json")
    return Response(answer.content, media_type=answer.media_type)
