"""A counter behind a web service: the mesh lives and ends with the application.

Serve it with `uvicorn app:app` from this folder, or run `python examples/actors/in_starlette/app.py`, which starts the
application, sends it a few requests and ends it. FastAPI takes the same `lifespan`. It needs starlette and httpx.
"""

# ruff: noqa: T201 - it shows what it does

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from tinker_actors.actors import Actor, DeadlineExceeded, Mesh, RestartPolicy


class Counter(Actor):
    """One for all requests, in a process of its own."""

    def __init__(self) -> None:
        self.n = 0

    async def add(self, n: int) -> int:
        """Add `n` and return the sum."""
        self.n += n
        return self.n


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Start the mesh before the first request, and end it after the last."""
    async with Mesh(nodes=2) as mesh:
        app.state.counter = await mesh.spawn(Counter, name="counter", restart=RestartPolicy.on_failure())
        yield


async def add(request: Request) -> JSONResponse:
    """POST /add/5"""
    counter: Counter = request.app.state.counter
    try:
        total = await counter.options(timeout=1.0).add(int(request.path_params["n"]))
    except DeadlineExceeded:
        return JSONResponse({"error": "busy"}, status_code=503)
    return JSONResponse({"total": total})


app = Starlette(routes=[Route("/add/{n:int}", add, methods=["POST"])], lifespan=lifespan)


def main() -> None:
    """Start the application, use it, end it."""
    with TestClient(app) as client:
        for n in (1, 2, 3):
            print("POST", f"/add/{n}", client.post(f"/add/{n}").json())
    print("ended")


if __name__ == "__main__":
    main()
