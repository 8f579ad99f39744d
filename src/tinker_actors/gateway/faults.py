"""Whose fault an error is, and what a client is told of it: the one boundary between errors and answers."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from typing import Literal

from tinker_actors.errors import ActorError, RunError, SnapshotCorruptError, StoreError, TinkerActorsError
from tinker_actors.gateway.observing.context import present
from tinker_actors.gateway.refusals import RefusalError

logger = logging.getLogger(__name__)

_OURS = (ActorError, RunError, SnapshotCorruptError, StoreError)
"""Errors of this package that no input causes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What a client is told.

    Attributes:
        status: The HTTP status.
        category: Whose fault it was: the client's (`user`) or the service's (`server`).
        text: What was wrong; of the service's own faults only where the log says more.
        code: A short name for programs.
    """

    status: int
    category: Literal["user", "server"]
    text: str
    code: str

    def refusal(self) -> RefusalError:
        """As what a route raises."""
        return RefusalError(self.status, self.text, code=self.code)


def fault_of(error: BaseException, *, during: str) -> Fault:
    """Tell whose fault an error was. The service's own are logged here, whole, under an id that the client is told.

    Args:
        error: The error.
        during: What was being done, for the log.
    """
    if isinstance(error, RefusalError):
        category = "server" if error.status >= 500 else "user"
        return Fault(status=error.status, category=category, text=error.detail, code=error.code)
    if isinstance(error, TinkerActorsError) and not isinstance(error, _OURS):
        return Fault(status=400, category="user", text=str(error), code=_code(error))
    trace = asked.trace if (asked := present.get()) is not None else secrets.token_hex(16)
    logger.error("%s failed, trace %s", during, trace, exc_info=error)
    text = f"{during} failed in the service ({type(error).__name__}); its log has more under trace {trace}"
    return Fault(status=500, category="server", text=text, code="internal")


def _code(error: TinkerActorsError) -> str:
    """`ConfigError` is `config_error`."""
    name = type(error).__name__
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
