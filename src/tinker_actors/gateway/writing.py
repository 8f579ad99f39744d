"""How refusals are written: each API's clients expect their own form."""

from __future__ import annotations

import orjson
from starlette.responses import Response

from tinker_actors.gateway.refusals import RefusalError


def json_response(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON, quickly."""
    return Response(orjson.dumps(content), status_code=status, headers=headers, media_type="application/json")


def refusal_response(path: str, error: RefusalError) -> Response:
    """A refusal in the form of the API that the path belongs to."""
    if path.startswith(("/v1/", "/openai/")):  # OpenAI's clients
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        body: dict[str, object] = {"error": {"message": error.detail, "type": kind, "code": error.code, "param": None}}
    else:
        category = "server" if error.status >= 500 else "user"
        body = {"detail": error.detail, "error": error.detail, "code": error.code, "category": category}
    return json_response(body, error.status, error.headers)
