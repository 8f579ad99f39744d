"""The endpoint's HTTP application, for whoever can say who stands behind a key."""

from __future__ import annotations

from typing import Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinker_actors.environments.openai.asked import Answers
from tinker_actors.environments.openai.errors import ApiError
from tinker_actors.environments.openai.http import (
    CHAT,
    MAX_BODY,
    RESPONSES,
    bounded,
    error_response,
    json_response,
    model_entry,
    served,
)


class Named(Answers, Protocol):
    """Who answers under a model's name."""

    @property
    def model(self) -> str:
        """The name."""
        ...


class Doors(Protocol):
    """Knows the keys."""

    def open(self, key: str, /) -> Named:
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

        async def answered() -> Response:
            return await served(request, CHAT, self._answers(request).answer, max_body=self._max_body)

        return await bounded(answered)

    async def responses(self, request: Request) -> Response:
        """POST /v1/responses."""

        async def answered() -> Response:
            return await served(request, RESPONSES, self._answers(request).answer, max_body=self._max_body)

        return await bounded(answered)

    async def models(self, request: Request) -> Response:
        """GET /v1/models: the one model that the key stands for."""

        async def listed() -> Response:
            return json_response({"object": "list", "data": [model_entry(self._answers(request).model)]})

        return await bounded(listed)

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""

        async def shown() -> Response:
            return json_response(model_entry(self._answers(request).model))

        return await bounded(shown)

    def _answers(self, request: Request) -> Named:
        key = request.path_params.get("key")
        if key is None:
            scheme, _, key = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not key:
                raise ApiError("no key was given; Authorization: Bearer KEY is needed", status=401, code="no_api_key")
        return self._doors.open(key.strip())


async def _no_such_route(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return error_response(
        ApiError(
            f"{request.method} {request.url.path.rpartition('/v1')[2] or '/'} is not served; POST "
            "/v1/chat/completions, POST /v1/responses and GET /v1/models are",
            status=status,
            code="not_found",
        )
    )
