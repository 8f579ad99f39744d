"""How refusals are written: each API's clients expect their own form."""

from __future__ import annotations

import orjson
from starlette.responses import Response
from starlette.types import Scope

from tinker_actors.gateway.observing.context import note_refusal, present
from tinker_actors.gateway.refusals import RefusalError


def own_path(scope: Scope) -> str:
    """The path within this application, which may be mounted in another."""
    return scope["path"].removeprefix(scope.get("root_path", ""))


def json_response(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON, quickly."""
    return Response(orjson.dumps(content), status_code=status, headers=headers, media_type="application/json")


def refusal_response(path: str, error: RefusalError) -> Response:
    """A refusal in the form of the API that the path belongs to. One that says that the gateway failed names the trace.

    Args:
        path: What was asked.
        error: Why it isn't served.
    """
    note_refusal(error.code)
    asked = present.get()
    more = {"trace_id": asked.trace} if asked is not None and error.status >= 500 else {}
    if path.startswith(("/v1/", "/openai/")):  # OpenAI's clients
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        about = {"message": error.detail, "type": kind, "code": error.code, "param": None, **more}
        body: dict[str, object] = {"error": about}
    else:
        category = "server" if error.status >= 500 else "user"
        body = {"detail": error.detail, "error": error.detail, "code": error.code, "category": category, **more}
    return json_response(body, error.status, error.headers)
