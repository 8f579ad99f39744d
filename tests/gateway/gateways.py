"""Gateways for tests: over real actors in this process, asked through ASGI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
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
