"""What the gateway says when it doesn't do what it is asked."""

from __future__ import annotations

from collections.abc import Mapping

from tinker_actors.errors import TinkerActorsError


class RefusalError(TinkerActorsError):
    """A request that is not served; each API writes it in its own form.

    Attributes:
        status: The HTTP status.
        detail: Names the field, the value and what would be right.
        code: A short name for programs, such as `not_found`.
        headers: Headers of the response, such as `Retry-After`.
    """

    def __init__(self, status: int, detail: str, *, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.code, self.headers = status, detail, code, dict(headers or {})


def not_found(what: str, name: str) -> RefusalError:
    """Nothing of this name, or nothing that the caller may know of: both look the same from outside."""
    return RefusalError(404, f"{what} {name!r} is not known", code="not_found")
