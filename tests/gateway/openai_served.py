"""A gateway behind a real socket, asked by the real `openai` client."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import uvicorn

from tinker_actors.gateway.gateway import Gateway, create_app
from tinker_actors.gateway.runtime import Runtime, ServedModel

MODEL = "tiny/llama"
TINY = ServedModel(name=MODEL, base_model="tiny-llama:context=2048")
HELLO = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def served_at(root: Path, *models: ServedModel) -> AsyncIterator[tuple[Gateway, openai.AsyncOpenAI]]:
    """A gateway that listens on a port of 127.0.0.1, and a client of it."""
    async with Runtime(root, models or (TINY,), in_process=True) as runtime, Gateway(runtime=runtime) as gateway:
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(create_app(gateway), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listening])
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        try:
            async with openai.AsyncOpenAI(base_url=url, api_key="tml-test", max_retries=0) as api:
                yield gateway, api
        finally:
            await server.shutdown(sockets=[listening])
