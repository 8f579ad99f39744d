"""The gate: every request passes it before any route sees it. What has no caller gets no further."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeAlias

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinker_actors.gateway.bodies import ClientGoneError, read_body, replay
from tinker_actors.gateway.caller import Caller
from tinker_actors.gateway.limits import Limiter
from tinker_actors.gateway.observing.context import present
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.writing import own_path, refusal_response

Admit: TypeAlias = Callable[[HTTPConnection], Caller]
"""Says who asks; raises `RefusalError` if nobody known does."""

OPEN_PATHS = frozenset({"/", "/healthz", "/api/v1/healthz"})
"""What anybody may ask, because it tells nothing; `/` is the dashboard's page, without any data."""

OPEN_FOLDER = "/dashboard/static/"
"""The files of that page, likewise."""

DOWNLOADS = "/api/v1/downloads/"
"""What is behind it is opened by a signed address rather than by a key."""

_GUARDS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every answer: what it says is meant for the asking program, or for our own page, and for no frame."""


def is_open(path: str) -> bool:
    """Whether anybody may ask this."""
    return path in OPEN_PATHS or path.startswith((OPEN_FOLDER, DOWNLOADS))


class Gate:
    """ASGI middleware that lets a request in or answers in the route's place.

    In this order: its head, its address, who asks (put into `request.state.caller`), how much that tenant asks for, and
    its body, which a stranger therefore can't make anybody take in.

    Args:
        app: What lies behind.
        admit: Who is let in.
        limiter: How much of it.
        admitted: Told of every request that gets through: the seconds that it took.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        admit: Admit,
        limiter: Limiter | None = None,
        admitted: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._app, self._admit, self._limiter, self._admitted = app, admit, limiter or Limiter(), admitted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or not."""
        if scope["type"] == "websocket":  # nothing here speaks it, so nothing behind checks it
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            send = self._sending(send)
            try:
                await self._pass(scope, receive, send)
            except ClientGoneError:
                return
            except RefusalError as error:  # only those of the gate: behind it the application answers its own
                await refusal_response(own_path(scope), error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, began = own_path(scope), time.perf_counter()
        self._limiter.check_head(scope)
        tenant = ""
        if not is_open(path):
            connection = HTTPConnection(scope)
            connection.state.caller = caller = self._admit(connection)
            tenant = caller.tenant
            if (asked := present.get()) is not None:
                asked.tenant, asked.key = tenant, caller.key
        with self._limiter.one_of(tenant, path):
            body = await read_body(scope, receive, self._limiter.limits)
            with self._limiter.holding(len(body or b"")):
                self._admitted(time.perf_counter() - began)
                await self._app(scope, receive if body is None else replay(body, receive), send)

    def _sending(self, send: Send) -> Send:
        patience = self._limiter.limits.send_idle

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in _GUARDS if pair[0] not in present)]
            try:
                async with asyncio.timeout(patience):
                    await send(message)
            except TimeoutError:
                raise ClientGoneError from None

        return sent
