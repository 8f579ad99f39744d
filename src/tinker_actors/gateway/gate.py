"""The gate: every request passes it before any route sees it. What has no caller gets no further."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from tinker_actors.gateway.caller import LOCAL, Caller
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.writing import refusal_response

Admit: TypeAlias = Callable[[HTTPConnection], Caller]
"""Says who asks; raises `RefusalError` if nobody known does."""

OPEN_PATHS = frozenset({"/healthz", "/api/v1/healthz"})
"""What anybody may ask, because it tells nothing."""


def everybody(_: HTTPConnection) -> Caller:
    """Without keys everybody is the local tenant."""
    return LOCAL


class Gate:
    """ASGI middleware that puts the caller into `request.state.caller`, or answers in the route's place.

    Args:
        app: What lies behind.
        admit: Who is let in.
    """

    def __init__(self, app: ASGIApp, *, admit: Admit = everybody) -> None:
        self._app, self._admit = app, admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or not."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            connection = HTTPConnection(scope)
            try:
                connection.state.caller = self._admit(connection)
            except RefusalError as error:
                await refusal_response(scope["path"], error)(scope, receive, send)
                return
        await self._app(scope, receive, send)
