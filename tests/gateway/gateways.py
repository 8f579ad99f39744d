"""Gateways for tests: over real actors in this process, asked through ASGI."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.requests import HTTPConnection

from tinker_actors.gateway.caller import LOCAL_TENANT, Caller
from tinker_actors.gateway.gateway import Gateway, create_app
from tinker_actors.gateway.runtime import Runtime, ServedModel
from tinker_actors.gateway.scopes import USUAL_SCOPES

TINY = ServedModel(name="tiny/llama", base_model="tiny-llama")


@asynccontextmanager
async def gateway_at(
    root: Path, *models: ServedModel, **options: Any
) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """A gateway and a client that asks it without a network; the options are those of `Gateway`."""
    async with Runtime(root, models, in_process=True) as runtime, Gateway(runtime=runtime, **options) as gateway:
        transport = httpx.ASGITransport(create_app(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield gateway, client


def by_header(connection: HTTPConnection) -> Caller:
    """An `admit` that believes the header `Tenant`; nobody is an administrator."""
    tenant = connection.headers.get("tenant", LOCAL_TENANT)
    return Caller(tenant=tenant, key="test", scopes=frozenset(USUAL_SCOPES))


@asynccontextmanager
async def served(
    root: Path, *models: ServedModel, around: Callable[[Any], Any] = lambda app: app, **settings: Any
) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway behind a real server on this host, and its URL; `around` puts something between the two."""
    async with Runtime(root, models, in_process=True) as runtime, Gateway(runtime=runtime, **settings) as gateway:
        app = around(create_app(gateway))
        config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            try:
                yield gateway, f"http://127.0.0.1:{listening.getsockname()[1]}"
            finally:
                server.should_exit = True
                await serving


@contextmanager
def in_a_thread(root: Path, *models: ServedModel, **settings: Any) -> Iterator[tuple[Gateway, str]]:
    """As `served`, in a loop and thread of its own, for clients that block."""
    started: Future[tuple[Gateway, str]] = Future()
    stop: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        async with served(root, *models, **settings) as gateway_and_url:
            ending = asyncio.Event()
            stop.set_result((asyncio.get_running_loop(), ending))
            started.set_result(gateway_and_url)
            await ending.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # told to the thread that waits for the start
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield started.result(60)
    finally:
        if stop.done():
            loop, ending = stop.result()
            loop.call_soon_threadsafe(ending.set)
        thread.join()
