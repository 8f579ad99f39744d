"""Gateways for tests: over real actors in this process, asked through ASGI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tinker_actors.gateway.gateway import Gateway, create_app
from tinker_actors.gateway.runtime import Runtime, ServedModel

TINY = ServedModel(name="tiny/llama", base_model="tiny-llama")


@asynccontextmanager
async def gateway_at(root: Path, *models: ServedModel) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """A gateway and a client that asks it without a network."""
    async with Runtime(root, models, in_process=True) as runtime, Gateway(runtime=runtime) as gateway:
        transport = httpx.ASGITransport(create_app(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield gateway, client
