"""The gateway in a service of one's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from fastapi import FastAPI

from tinker_actors.gateway.config import load_serve_config
from tinker_actors.gateway.gateway import create_app
from tinker_actors.gateway.opening import open_gateway


async def test_it_is_mounted_in_an_application_that_has_routes_of_its_own(tmp_path: Path):
    config = load_serve_config(settings={"root": str(tmp_path), "in_process": True})

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_gateway(config) as gateway:
            app.mount("/tinker", create_app(gateway))
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/mine")
    async def mine() -> str:
        return "yes"

    async with lifespan(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            assert (await http.get("/mine")).json() == "yes"
            assert (await http.get("/tinker/healthz")).json() == {"status": "ok"}
            assert (await http.get("/tinker/jobs/v1/jobs")).json() == {"jobs": [], "before": None}
            missing = await http.get("/tinker/jobs/v1/jobs/job-0")
            assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
            refused = await http.post("/tinker/v1/completions", json={"model": "none", "prompt": "a"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
            stranger = await http.get("/tinker/v1/models", headers={"Origin": "http://elsewhere"})
            assert (stranger.status_code, stranger.json()["error"]["code"]) == (403, "forbidden")
