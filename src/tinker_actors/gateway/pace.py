"""How fast requests for samples are let in: as fast as the event loop keeps up with all that it has to answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tinker_actors.gateway.limits import Buckets

_EVERY = 0.02
_SLOWER, _FASTER = 0.8, 1.02


class Pace:
    """Lets requests in at a rate that falls while the running loop is late and rises while it is not.

    A loop with more to do than it can do in time answers everybody late. Who is told to come back instead leaves it
    time for the others. The rate is additive-increase and multiplicative-decrease, as congestion control of networks is
    (Chiu and Jain 1989), and what comes at once beyond it is bounded.

    Args:
        bearable: Seconds that a timer may be late; beyond them the loop is.
        slowest: Requests a second that are let in however late the loop is.
        fastest: Requests a second that are let in at most.
        burst: Requests that are let in at once.
    """

    def __init__(
        self, *, bearable: float = 0.01, slowest: float = 50.0, fastest: float = 5000.0, burst: float = 16.0
    ) -> None:
        self._bearable, self._slowest, self._fastest = bearable, slowest, fastest
        self._bucket = Buckets(fastest, burst)

    @property
    def rate(self) -> float:
        """Requests a second that are let in at present."""
        return self._bucket.rate

    def lets_in(self) -> bool:
        """Whether one more request is let in now."""
        return not self._bucket.take("everybody")

    def saw(self, late: float) -> None:
        """Learn how many seconds late the loop was just now."""
        if late > self._bearable:
            self._bucket.rate = max(self._slowest, self.rate * _SLOWER)
        else:
            self._bucket.rate = min(self._fastest, self.rate * _FASTER + 1)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Look how late the running loop is, as long as the block lasts."""
        watcher = asyncio.create_task(self._watch(), name="pace")
        try:
            yield
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _EVERY
            await asyncio.sleep(_EVERY)
            self.saw(loop.time() - due)
