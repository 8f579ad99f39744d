"""All that the routes share, and the application made of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import FastAPI, Request
from starlette.responses import Response

from tinker_actors.gateway.admission import Admission
from tinker_actors.gateway.gate import Admit, Gate
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.runtime import Runtime
from tinker_actors.gateway.serving import Serving
from tinker_actors.gateway.writing import json_response, refusal_response


@dataclass(slots=True, kw_only=True)
class Gateway:
    """What the routes share; a route finds it at `request.app.state.gateway`.

    Attributes:
        runtime: The actors.
        admit: Who is let in; programs of the same host alone, if nothing else is said.
        serving: Loads snapshots into the samplers.
    """

    runtime: Runtime
    admit: Admit = field(default_factory=Admission)
    serving: Serving = field(init=False)

    def __post_init__(self) -> None:
        self.serving = Serving(self.runtime)


def create_app(gateway: Gateway) -> FastAPI:
    """The gateway's HTTP application: an ASGI app to serve alone, or to mount in a service of one's own."""
    app = FastAPI(title="tinker_actors", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    app.state.gateway = gateway
    app.add_exception_handler(RefusalError, refused)
    app.add_api_route("/healthz", _health, methods=["GET"])
    app.add_middleware(Gate, admit=gateway.admit)
    return app


async def _health() -> Response:
    return json_response({"status": "ok"})


async def refused(request: Request, error: Exception) -> Response:
    """What a route refused, in the form of its API."""
    assert isinstance(error, RefusalError)
    return refusal_response(request.url.path, error)
