"""Tells that nobody served: counted by cause, and logged at most once a second."""

from __future__ import annotations

import asyncio
import enum
import logging

from tinker_actors.actors.errors import (
    ActorDiedError,
    ActorStoppedError,
    NodeDiedError,
    NodeUnreachableError,
    UnroutableError,
)

logger = logging.getLogger(__name__)

INTERVAL = 1.0  # seconds between two lines of the log


class Lost(enum.Enum):
    """What became of a tell that was not served to its end."""

    FAILED = "failed"  # its handler raised
    ENDED = "ended"  # its actor had ended, or ended before its turn
    NODE_DIED = "node died"  # its actor's process was gone, or died before it said that it served it
    REFUSED = "refused"  # the actor answers no such message, or it could not be read


class DeadLetters:
    """One node's. The first after a pause is logged at once, those that follow within a second as one line."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._counts = dict.fromkeys(Lost, 0)
        self._timer: asyncio.TimerHandle | None = None
        self._held = 0
        self._last = ""

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self._counts.values())

    @property
    def by_cause(self) -> dict[Lost, int]:
        """How many there were of each cause."""
        return dict(self._counts)

    def add(self, what: str, error: BaseException, *, begun: bool = False, count: int = 1) -> None:
        """Count tells (`what` names one) that ended with `error`, in their handler if `begun`."""
        if not count:
            return
        self._counts[_cause(error, begun=begun)] += count
        self._last = f"{what}: {type(error).__name__}: {error}"
        self._held += count
        if self._timer is None:
            self._log()

    def close(self) -> None:
        """Log what is held back."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._held:
            self._write()

    def _log(self) -> None:
        self._timer = None
        if self._held:
            self._write()
            self._timer = self._loop.call_later(INTERVAL, self._log)

    def _write(self) -> None:
        held, self._held = self._held, 0
        if held == 1:
            logger.warning("a tell was dropped or failed: %s", self._last)
        else:
            logger.warning("%d tells were dropped or failed; the last: %s", held, self._last)


def _cause(error: BaseException, *, begun: bool) -> Lost:
    if begun:
        return Lost.FAILED
    if isinstance(error, NodeDiedError | NodeUnreachableError | UnroutableError):
        return Lost.NODE_DIED
    if isinstance(error, ActorStoppedError | ActorDiedError):
        return Lost.ENDED
    return Lost.REFUSED
