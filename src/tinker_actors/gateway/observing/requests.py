"""Watches every request: its trace, its place in the metrics, its line in the log, and an id for what goes wrong."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinker_actors.actors.tracing import trace
from tinker_actors.gateway.faults import fault_of
from tinker_actors.gateway.observing.context import Asked, present
from tinker_actors.gateway.observing.metrics import HttpMetrics
from tinker_actors.gateway.writing import own_path, refusal_response

access = logging.getLogger("tinker_actors.gateway.access")

_GONE = 499
_TRACE_ID = slice(3, 35)


class Watch:
    """ASGI middleware, the outermost: what happens within is counted, logged and traced.

    A `traceparent` of the client is gone on with, and every message to an actor that serves the request carries it. The
    trace's id is in the answer's `X-Trace-Id`, and in the body of every answer that says that the gateway failed.

    Args:
        app: What lies behind.
        metrics: Where requests are counted.
    """

    def __init__(self, app: ASGIApp, *, metrics: HttpMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Watch a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with trace(_header(scope, b"traceparent")) as parent:
            asked = Asked(trace=parent[_TRACE_ID])
            token = present.set(asked)
            try:
                await self._watched(asked, scope, receive, send)
            finally:
                present.reset(token)

    async def _watched(self, asked: Asked, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        status = 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-trace-id", asked.trace.encode())]
            await send(message)

        with self._metrics.in_flight.track_inprogress():
            try:
                await self._app(scope, receive, sent)
            except Exception as error:  # the last boundary: whatever it was, the client gets an id and no internals
                if status:  # it was under way: the connection can only be cut
                    raise
                refusal = fault_of(error, during=f"{scope['method']} {scope['path']}").refusal()
                await refusal_response(own_path(scope), refusal)(scope, receive, sent)
            finally:
                self._note(asked, scope, status or _GONE, time.perf_counter() - began)

    def _note(self, asked: Asked, scope: Scope, status: int, seconds: float) -> None:
        self._metrics.answered(scope["method"], _template(scope), status, seconds, asked.refused)
        asked.job = asked.job or str(scope.get("path_params", {}).get("job", ""))
        if access.isEnabledFor(logging.INFO):
            known = {"method": scope["method"], "path": scope["path"], "status": status, "refused": asked.refused}
            extra = {name: value for name, value in known.items() if value} | {"milliseconds": round(seconds * 1e3, 2)}
            access.info("%s", status, extra=extra)


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for found, value in scope["headers"] if found == name), None)


def _template(scope: Scope) -> str | None:
    """The path of the route that answered, with names in place of what varies; None if none did."""
    route = scope.get("fastapi", {}).get("effective_route_context") or scope.get("route")  # with its routers' prefixes
    return getattr(route, "path", None)
