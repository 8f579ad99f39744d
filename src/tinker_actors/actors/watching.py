"""Hearing what becomes of an actor."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from tinker_actors.actors.events import Event, Terminated
from tinker_actors.actors.ref import ActorRef


class Listener(Protocol):
    """Is told of an actor's events as they happen."""

    def put(self, event: Event) -> None:
        """The next event."""
        ...

    def lost(self, ref: ActorRef, error: Exception) -> None:
        """The actor's process died; the actor is to be started again, which will be an event."""
        ...


class Watch:
    """The events of one actor from now on; ends after `Terminated`."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False

    def put(self, event: Event) -> None:
        """The next event."""
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def lost(self, ref: ActorRef, error: Exception) -> None:
        """Nothing yet: a watch hears of the restart."""

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Event:
        if self._waiter is not None:
            raise RuntimeError("this watch is being read by another task; one at a time may read it")
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        event = self._events.popleft()
        self._ended = isinstance(event, Terminated)
        return event
