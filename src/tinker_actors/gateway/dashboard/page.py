"""The page and its files: plain HTML, CSS and ES modules, served as they lie in the package."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from tinker_actors.gateway.refusals import not_found

router = APIRouter()

_FOLDER = Path(__file__).with_name("static")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",  # pictures of episodes come as text
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # no text ever becomes markup
        "trusted-types 'none'",
    )
)
"""The content security policy: what the page shows was written by models and environments, and none of it may run."""


def _read() -> dict[str, tuple[bytes, str, str]]:
    """Content, media type and tag of every file, by name: what isn't here can't be asked for."""
    found: dict[str, tuple[bytes, str, str]] = {}
    for path in sorted(_FOLDER.iterdir()):
        content = path.read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        found[path.name] = (content, f"{_TYPES[path.suffix]}; charset=utf-8", tag)
    return found


_FILES = _read()


@router.get("/")
async def index(request: Request) -> Response:
    """The page."""
    return _file(request, "index.html")


@router.get("/dashboard/static/{name}")
async def static(request: Request, name: str) -> Response:
    """One of the page's files."""
    return _file(request, name)


def _file(request: Request, name: str) -> Response:
    if name not in _FILES:
        raise not_found("file", name)
    content, media_type, tag = _FILES[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)
