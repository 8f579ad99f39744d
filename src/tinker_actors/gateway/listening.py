"""The gateway's HTTP server, in the event loop of whoever starts it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

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
    """Serve an application on a socket; the URL. Requests under way have a few seconds to end when the block is left.

    It installs no signal handlers.
    """
    config = uvicorn.Config(
        app,
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
        await server.shutdown(sockets=[listener])


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
