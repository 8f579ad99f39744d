"""The gate: every request passes it before any route sees it. What has no caller gets no further."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinker_actors.gateway.caller import Caller
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.writing import refusal_response

Admit: TypeAlias = Callable[[HTTPConnection], Caller]
"""Says who asks; raises `RefusalError` if nobody known does."""

OPEN_PATHS = frozenset({"/", "/healthz", "/api/v1/healthz"})
"""What anybody may ask, because it tells nothing; `/` is the dashboard's page, without any data."""

OPEN_FOLDER = "/dashboard/static/"
"""The files of that page, likewise."""

_GUARDS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every answer: what it says is meant for the asking program, or for our own page, and for no frame."""


def is_open(scope: Scope) -> bool:
    """Whether anybody may ask this."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


class Gate:
    """ASGI middleware that puts the caller into `request.state.caller`, or answers in the route's place.

    Args:
        app: What lies behind.
        admit: Who is let in.
    """

    def __init__(self, app: ASGIApp, *, admit: Admit) -> None:
        self._app, self._admit = app, admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or not."""
        if scope["type"] == "websocket":  # nothing here speaks it, so nothing behind checks it
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _guarded(send)
        if not is_open(scope):
            connection = HTTPConnection(scope)
            try:
                connection.state.caller = self._admit(connection)
            except RefusalError as error:
                await refusal_response(scope["path"], error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _guarded(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(pair for pair in _GUARDS if pair[0] not in present)]
        await send(message)

    return guarded
