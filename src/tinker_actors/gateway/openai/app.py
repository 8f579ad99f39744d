"""The OpenAI-compatible API's routes, under `/v1`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response

from tinker_actors.environments.openai.http import CHAT, COMPLETIONS, RESPONSES, bounded, json_response, served
from tinker_actors.gateway.caller import Caller, CallerOf, needs
from tinker_actors.gateway.openai.answering import Answering
from tinker_actors.gateway.openai.names import listed, shown
from tinker_actors.gateway.openai.schemas import CHAT_BODY, COMPLETION_BODY, REFUSALS, RESPONSE_BODY, body

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway

router = APIRouter(prefix="/v1", tags=["openai"])


def _gateway(request: Request) -> Gateway:
    return request.app.state.gateway


def _answering(request: Request, caller: Caller) -> Answering:
    return Answering(_gateway(request), caller)


def _most(request: Request) -> int:
    return _gateway(request).limits.large_body_bytes


@router.get("/models", dependencies=[needs("sample", "read")])
async def list_models(request: Request, caller: CallerOf) -> Response:
    """Base models, the tenant's policies, and the snapshots that it may sample."""

    async def found() -> Response:
        return json_response({"object": "list", "data": await listed(_gateway(request), caller)})

    return await bounded(found)


@router.get("/models/{model:path}", dependencies=[needs("sample", "read")], responses=REFUSALS)
async def show_model(request: Request, model: str, caller: CallerOf) -> Response:
    """One of them."""

    async def found() -> Response:
        return json_response(await shown(_gateway(request), caller, model))

    return await bounded(found)


@router.post("/chat/completions", dependencies=[needs("sample")], responses=REFUSALS, openapi_extra=body(CHAT_BODY))
async def chat_completions(request: Request, caller: CallerOf) -> Response:
    """Answer a conversation; a stream of events if the body says so."""

    async def answered() -> Response:
        return await served(request, CHAT, _answering(request, caller).answer, max_body=_most(request))

    return await bounded(answered)


@router.post("/completions", dependencies=[needs("sample")], responses=REFUSALS, openapi_extra=body(COMPLETION_BODY))
async def completions(request: Request, caller: CallerOf) -> Response:
    """Go on from texts or token ids."""

    async def answered() -> Response:
        return await served(request, COMPLETIONS, _answering(request, caller).complete, max_body=_most(request))

    return await bounded(answered)


@router.post("/responses", dependencies=[needs("sample")], responses=REFUSALS, openapi_extra=body(RESPONSE_BODY))
async def responses(request: Request, caller: CallerOf) -> Response:
    """Answer a conversation in the newer form of the API."""

    async def answered() -> Response:
        return await served(request, RESPONSES, _answering(request, caller).answer, max_body=_most(request))

    return await bounded(answered)
