"""What is being asked at this point of the program: it travels with the context, so that logs can name it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Asked:
    """A request, as logs and answers name it. What becomes known of it on the way is filled in.

    Attributes:
        trace: The trace that it belongs to, 32 hexadecimal digits.
        tenant: Who asks.
        key: Id of the key that it came with.
        job: The job that it is about.
        refused: Why it was refused, as a short code.
    """

    trace: str
    tenant: str = ""
    key: str = ""
    job: str = ""
    refused: str = ""


present: ContextVar[Asked | None] = ContextVar("asked", default=None)
"""The request being served; None outside of any."""


def note_refusal(code: str) -> None:
    """The present request is refused for this reason."""
    if (asked := present.get()) is not None:
        asked.refused = code
