"""The clock of one episode: it keeps the episode's limits, and stands still while others hold the episode up."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from tinker_actors.coordinator.limits import EpisodeLimits

T = TypeVar("T")

_SLACK = 0.05  # share of `turn_seconds` by which a turn may be longer: quick turns then leave the timer alone


class SeatLateError(TimeoutError):
    """A seat didn't answer within its own limit."""


class EpisodeClock:
    """For one episode, which is played within it as an async context; past a limit it raises `TimeoutError` there."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._timeout = asyncio.timeout(None)
        self._turn = self._whole = math.inf  # seconds; when the limit of the episode passes
        self._due = math.inf  # when the next limit passes, if the clock is not stopped until then
        self._running = False
        self._stops = 0
        self._stopped_at = 0.0
        self._seats: dict[asyncio.Timeout, float] = {}  # when the limit of a seat that is to answer passes
        self.bounded = False
        """Whether a turn or the episode has a limit."""

    @property
    def expired(self) -> bool:
        """Whether a limit was passed."""
        return self._timeout.expired()

    @property
    def is_over(self) -> bool:
        """Whether the limit of the whole episode was passed."""
        return self._time() >= self._whole and self.expired

    def limit(self, limits: EpisodeLimits) -> None:
        """Set the limits; the episode begins now."""
        self._turn = limits.turn_seconds or math.inf
        if limits.episode_seconds is not None:
            self._whole = self._time() + limits.episode_seconds
        self.bounded = self._turn < math.inf or self._whole < math.inf
        self._due = -math.inf

    def next_turn(self) -> None:
        """Where there are limits: move the deadline to the end of the turn that begins, or of the episode if sooner."""
        now = self._time()
        if self._due < now + self._turn and self._due < self._whole:
            self._due = min(now + self._turn * (1 + _SLACK), self._whole)
            if not self._stops:
                self._move(self._due)

    def check(self) -> None:
        """Raise `TimeoutError` if a limit was passed, which code that caught its cancellation may hide."""
        if self._time() >= self._due and self.expired:  # the time is quicker to look up
            raise TimeoutError

    async def within(self, seconds: float, answer: Awaitable[T]) -> T:
        """Wait for a seat's answer.

        Args:
            seconds: The seat's own limit.
            answer: What is waited for; cancelled past the limit.

        Raises:
            SeatLateError: It didn't come in time.
        """
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                begins = self._stopped_at if self._stops else self._time()
                self._seats[timeout] = begins + seconds
                if not self._stops:
                    timeout.reschedule(begins + seconds)
                found = await answer
        except TimeoutError:
            if timeout.expired():
                raise SeatLateError from None
            raise
        finally:
            self._seats.pop(timeout, None)
        if timeout.expired():  # the answer caught its cancellation
            raise SeatLateError
        return found

    @contextmanager
    def stopped(self) -> Generator[None]:
        """Within it no time passes for the episode. May be entered by several of its seats at once."""
        self._stops += 1
        if self._stops == 1:
            self._stopped_at = self._time()
            self._move(math.inf)
            for timeout in self._seats:
                if not timeout.expired():
                    timeout.reschedule(None)
        try:
            yield
        finally:
            self._stops -= 1
            if not self._stops:
                self._resume(self._time() - self._stopped_at)

    def _resume(self, waited: float) -> None:
        self._whole += waited
        self._due += waited
        self._move(self._due)
        for timeout, due in self._seats.items():
            self._seats[timeout] = due + waited
            if not timeout.expired():
                timeout.reschedule(due + waited)

    def _move(self, when: float) -> None:
        if self._running and not self.expired:
            self._timeout.reschedule(when if when < math.inf else None)

    async def __aenter__(self) -> EpisodeClock:
        await self._timeout.__aenter__()
        self._running = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running = False
        await self._timeout.__aexit__(kind, error, trace)
