"""An OpenAI-compatible API over HTTP, for whoever can say who stands behind a key."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tinker_actors.environments.outside.asked import Answered, Answers, ApiError, Asked, Body
from tinker_actors.environments.outside.chat import chat_chunks, chat_completion, read_chat
from tinker_actors.environments.outside.responses import read_response_request, response, response_events

logger = logging.getLogger(__name__)

MAX_BODY = 16 * 2**20
"""Bytes of a request's body."""

_GONE_AWAY = 499  # nobody reads it; what servers log for a client that left


class Doors(Protocol):
    """Knows the keys."""

    def open(self, key: str, /) -> Answers:
        """Who stands behind a key.

        Raises:
            ApiError: Nobody does, or no longer.
        """
        ...


def openai_app(doors: Doors, *, max_body: int = MAX_BODY) -> Starlette:
    """The API: chat completions, responses and models, under `/v1` and, with the key in the path, under `/KEY/v1`.

    Args:
        doors: Who answers to which key.
        max_body: The most bytes of a request's body.
    """
    api = _Api(doors, max_body)
    routes = [
        route
        for prefix in ("/v1", "/{key}/v1")
        for route in (
            Route(f"{prefix}/chat/completions", api.chat, methods=["POST"]),
            Route(f"{prefix}/responses", api.responses, methods=["POST"]),
            Route(f"{prefix}/models", api.models, methods=["GET"]),
            Route(f"{prefix}/models/{{model:path}}", api.model, methods=["GET"]),
        )
    ]
    return Starlette(routes=routes, exception_handlers={404: _no_such_route, 405: _no_such_route})


class _Api:
    def __init__(self, doors: Doors, max_body: int) -> None:
        self._doors, self._max_body = doors, max_body

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""

        def events(answer: Answered, asked: Asked, created: int, body: Body) -> Iterator[str]:
            options = body.get("stream_options", dict, needed="an object") or {}
            return chat_chunks(answer, asked, created, usage=bool(options.get("include_usage")))

        return await self._served(request, read_chat, chat_completion, events)

    async def responses(self, request: Request) -> Response:
        """POST /v1/responses."""

        def events(answer: Answered, asked: Asked, created: int, body: Body) -> Iterator[str]:
            return response_events(answer, asked, created)

        return await self._served(request, read_response_request, response, events)

    async def models(self, request: Request) -> Response:
        """GET /v1/models: the one model that the key stands for."""

        async def listed() -> Response:
            return JSONResponse({"object": "list", "data": [_model(self._answers(request).model)]})

        return await _bounded(listed)

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""

        async def shown() -> Response:
            return JSONResponse(_model(self._answers(request).model))

        return await _bounded(shown)

    async def _served(
        self,
        request: Request,
        read: Callable[[Body], Asked],
        whole: Callable[[Answered, Asked, int], dict[str, Any]],
        events: Callable[[Answered, Asked, int, Body], Iterator[str]],
    ) -> Response:
        async def served() -> Response:
            answers = self._answers(request)
            body = Body.read(await self._read(request))
            asked, streams = read(body), bool(body.flag("stream"))
            answer = await _unless_gone(request, answers.answer(asked))
            if answer is None:
                return Response(status_code=_GONE_AWAY)
            created = int(time.time())
            if streams:
                return StreamingResponse(_each(events(answer, asked, created, body)), media_type="text/event-stream")
            return JSONResponse(whole(answer, asked, created))

        return await _bounded(served)

    def _answers(self, request: Request) -> Answers:
        key = request.path_params.get("key")
        if key is None:
            scheme, _, key = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not key:
                raise ApiError("no key was given; Authorization: Bearer KEY is needed", status=401, code="no_api_key")
        return self._doors.open(key.strip())

    async def _read(self, request: Request) -> bytes:
        size, parts = 0, list[bytes]()
        async for part in request.stream():
            size += len(part)
            if size > self._max_body:
                raise ApiError(
                    f"the body has more than {self._max_body} bytes; that many are taken", status=413, code="too_large"
                )
            parts.append(part)
        return b"".join(parts)


async def _bounded(handle: Callable[[], Any]) -> Response:
    """The boundary between HTTP and what serves it: whatever is raised becomes a response."""
    try:
        return await handle()
    except ApiError as error:
        return JSONResponse(error.body, status_code=error.status)
    except ClientDisconnect:
        return Response(status_code=_GONE_AWAY)
    except Exception as error:  # a fault of ours or of what samples: told, logged, and the server goes on
        logger.exception("a request to the endpoint failed")
        told = ApiError(f"{type(error).__name__}: {error}", status=500, type="server_error", code="server_error")
        return JSONResponse(told.body, status_code=500)


async def _unless_gone(request: Request, answering: Any) -> Answered | None:
    """The answer; None if the client went away, which cancels the answering."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answer, left = asyncio.ensure_future(answering), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        for task in (answer, left):
            task.cancel()
        await asyncio.gather(answer, left, return_exceptions=True)


async def _each(events: Iterator[str]) -> AsyncIterator[str]:
    for event in events:
        yield event


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "tinker_actors"}


async def _no_such_route(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    said = ApiError(
        f"{request.method} {request.url.path.rpartition('/v1')[2] or '/'} is not served; POST /v1/chat/completions, "
        "POST /v1/responses and GET /v1/models are",
        status=status,
        code="not_found",
    )
    return JSONResponse(said.body, status_code=status)
