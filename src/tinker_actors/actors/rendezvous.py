"""The rule of barriers, for one process: parties that wait for each other, phase after phase. `Barrier` makes it
reach across processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

from tinker_actors.actors.errors import BarrierBrokenError, BarrierError

P = TypeVar("P", bound=Hashable)


class Rendezvous(Generic[P]):
    """A phase ends when every party has arrived; then the next begins with the same parties.

    Once broken it stays so until `reset`: all who wait, and all who arrive later, get the cause.

    Args:
        parties: who must arrive.
        timeout: seconds that the first to arrive waits for the last; None for no bound.
        describe: a party's name in errors.

    Attributes:
        phase: counts from 0.
        broken: why it broke, or None.
        timeout: see above.
    """

    def __init__(
        self, parties: Iterable[P], *, timeout: float | None = None, describe: Callable[[P], str] = str
    ) -> None:
        self.phase = 0
        self.broken: BarrierBrokenError | None = None
        self.timeout = timeout
        self._describe = describe
        self._parties = dict.fromkeys(parties)
        self._missing = set(self._parties)
        self._waiters: list[asyncio.Future[int]] = []
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def parties(self) -> tuple[P, ...]:
        """Who must arrive, in the order in which they joined."""
        return tuple(self._parties)

    @property
    def missing(self) -> tuple[P, ...]:
        """Who has not arrived in the present phase."""
        return tuple(party for party in self._parties if party in self._missing)

    @property
    def is_awaited(self) -> bool:
        """Whether anyone has arrived in the present phase and waits."""
        return any(not waiter.done() for waiter in self._waiters)

    def refusal(self, party: P, phase: int | None = None) -> BarrierError | None:
        """Why this party may not arrive now, or None if it may; `phase` is the one that it means to end."""
        name = self._describe(party)
        if party not in self._parties:
            return BarrierError(f"{name} is not a party of this barrier")
        if phase is not None and phase != self.phase:
            return BarrierError(f"{name} arrived for phase {phase}, but phase {self.phase} is going on")
        if party not in self._missing:
            return BarrierError(f"{name} has arrived in phase {self.phase} already")
        return None

    def arrive(self, parties: Collection[P]) -> asyncio.Future[int]:
        """Let parties arrive that have no `refusal`; the future gives the number of the phase once it has ended.

        Raises:
            BarrierBrokenError: it is broken.
        """
        if self.broken is not None:
            raise self.broken.again()
        self._missing.difference_update(parties)
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if not self._missing:
            self._open()
        elif self._alarm is None and self.timeout is not None:
            self._alarm = asyncio.get_running_loop().call_later(self.timeout, self._overdue)
        return waiter

    def join(self, party: P) -> None:
        """Another party, from the present phase on.

        Raises:
            BarrierError: it is a party already.
        """
        if party in self._parties:
            raise BarrierError(f"{self._describe(party)} is a party of this barrier already")
        self._parties[party] = None
        self._missing.add(party)

    def leave(self, party: P) -> None:
        """A party less, in the present phase too: if only it was missing, the phase ends."""
        if party not in self._parties:
            raise BarrierError(f"{self._describe(party)} is not a party of this barrier")
        del self._parties[party]
        self._missing.discard(party)
        if not self._missing and self._waiters and self.broken is None:
            self._open()

    def break_(self, cause: str, reason: Exception | None = None) -> None:
        """Wake all who wait with `cause` and, as its cause in turn, `reason`. The first break counts."""
        if self.broken is not None:
            return
        self.broken = BarrierBrokenError(self.phase, cause, reason)
        waiters, self._waiters = self._waiters, []
        self._silence()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(self.broken.again())

    def reset(self) -> None:
        """Begin the next phase with the present parties, none of which has arrived. Who still waits gets an error."""
        self.break_("the barrier was reset")
        self.broken = None
        self._begin()

    def _open(self) -> None:
        waiters, self._waiters = self._waiters, []
        ended = self.phase
        self._begin()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(ended)

    def _begin(self) -> None:
        self._silence()
        self.phase += 1
        self._missing = set(self._parties)

    def late(self) -> str:
        """What breaks it when the timeout has passed."""
        names = ", ".join(self._describe(party) for party in self.missing)
        return f"{names} did not arrive within {self.timeout:g} s of the first"

    def _overdue(self) -> None:
        self.break_(self.late())

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
