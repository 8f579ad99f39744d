"""The gateway's HTTP server, in the event loop of whoever starts it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import cast

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinker_actors.errors import ConfigError
from tinker_actors.gateway.wire import GuardedProtocol

_BACKLOG = 2048
_CONNECTIONS = 16384
"""At once; beyond them the answer is 503. Each takes some 10 kB."""
_ENDING = 3
"""Seconds in which requests under way may end when the server does."""


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens; whoever connects before somebody serves it waits.

    Raises:
        ConfigError: The address can't be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"host is {host!r}; an address of this machine is needed: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    # asyncio sends small packets at once only on sockets that say that they are of TCP; an answer is two of them
    with socket.socket(family, kind, protocol or socket.IPPROTO_TCP) as listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError as error:
            raise ConfigError(f"port {port} of {host} can't be had: {error.strerror}; another --port may") from None
        listener.setblocking(False)
        yield listener


@asynccontextmanager
async def serving(app: ASGIApp, listener: socket.socket) -> AsyncIterator[str]:
    """Serve an application on a socket; the URL. It installs no signal handlers.

    When the block is left, streams that only wait for more are cut off, as if their reader had gone; other requests
    under way have a few seconds to end.
    """
    ending = _Ending(app)
    config = uvicorn.Config(
        ending,
        http=GuardedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=_ENDING,
        backlog=_BACKLOG,
        limit_concurrency=_CONNECTIONS,
    )
    config.load()
    # `serve` would take over the process's signals and look at the time ten times a second
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    try:
        yield _url(listener)
    finally:
        ending.begun.set()
        await server.shutdown(sockets=[listener])


class _Ending:
    """An application whose streams learn that the server ends: they are told that their reader is gone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.begun = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = scope["type"] != "http"

        async def received() -> Message:
            nonlocal whole
            if not whole:
                message = await receive()
                whole = message["type"] != "http.request" or not message.get("more_body", False)
                return message
            waiting = [asyncio.ensure_future(receive()), asyncio.ensure_future(self.begun.wait())]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                message = waiting[0].result() if waiting[0].done() else None
            finally:
                for each in waiting:
                    each.cancel()
            return {"type": "http.disconnect"} if message is None else cast("Message", message)

        await self._app(scope, received, send)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
