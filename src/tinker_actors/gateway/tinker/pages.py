"""Lists that are read page by page, and times as clients read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Query

Limit: TypeAlias = Annotated[int, Query(ge=1, le=1000)]
Offset: TypeAlias = Annotated[int, Query(ge=0, lt=2**63)]
Scope: TypeAlias = Literal["owned", "accessible"]
"""A tenant's own, or also what others made public."""


def cursor(*, offset: int, limit: int, total: int) -> dict[str, int]:
    """Where a page is."""
    return {"offset": offset, "limit": limit, "total_count": total}


def moment(seconds: float | None) -> str | None:
    """A time in ISO 8601, in UTC; None stays."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


def texts(metadata: Any) -> dict[str, str] | None:
    """Metadata as clients read it: text alone, and None if there is none."""
    return {str(name): str(value) for name, value in metadata.items()} or None
