"""An actor whose handlers wait for other actors, in the ways that handlers do; importable by child processes."""

from __future__ import annotations

import asyncio
from typing import Any

from tinker_actors.actors import Actor, ActorDiedError, AskCycleError, concurrent


class Waiter(Actor):
    """Its handlers say when they have begun, and ask on once they may."""

    def __init__(self, peer: Any = None) -> None:
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.free = asyncio.Event()
        self.given_up: asyncio.Task[Any] | None = None
        self.peer = peer

    async def on_start(self) -> None:
        if self.peer is not None:
            self.peer.tell.meet(self.ref)
            await self.peer.ping()

    async def meet(self, other: Any) -> None:
        try:
            await other.ping()
        except ActorDiedError as error:
            self.met = str(error)
        self.entered.set()

    async def last_met(self) -> str:
        return self.met

    async def ping(self) -> str:
        return "pong"

    @concurrent
    async def wait_entered(self) -> None:
        await self.entered.wait()

    @concurrent
    async def open(self) -> None:
        self.gate.set()

    @concurrent
    async def wait_open(self) -> None:
        await self.gate.wait()

    @concurrent
    async def mailbox(self) -> int:
        return len(self.__actor_cell__.queue)

    async def _begin(self) -> None:
        self.entered.set()
        await self.gate.wait()

    async def cross(self, other: Any, timeout: float | None = None) -> str:
        await self._begin()
        return await other.options(timeout=timeout).ping()

    async def through(self, other: Any, third: Any) -> str:
        await self._begin()
        return await other.relay(third)

    async def relay(self, other: Any) -> str:
        return await other.ping()

    @concurrent
    async def relay_beside(self, other: Any) -> str:
        return await other.ping()

    async def through_beside(self, other: Any, third: Any) -> str:
        await self._begin()
        return await other.relay_beside(third)

    async def both(self, *others: Any) -> list[str]:
        await self._begin()
        return list(await asyncio.gather(*(other.ping() for other in others)))

    async def race(self, *others: Any) -> str:
        """The first answer, or the end of `free`, whichever comes first."""
        await self._begin()
        tasks = [asyncio.ensure_future(other.ping()) for other in others]
        tasks.append(asyncio.ensure_future(self._free()))
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return done.pop().result()

    async def _free(self) -> str:
        await self.free.wait()
        return "free"

    async def settle(self, other: Any) -> str:
        """Ask in a way that can be called off from outside."""
        await self._begin()
        self.given_up = asyncio.current_task()
        try:
            return await other.ping()
        except asyncio.CancelledError:
            self.__actor_cell__.task.uncancel()  # pyright: ignore[reportOptionalMemberAccess]
            return "gave up"

    def call_off(self) -> None:
        assert self.given_up is not None
        self.given_up.cancel()

    async def hold(self, switch: Any) -> str:
        """Until `switch` is open: an own gate can't be opened past what waits in the mailbox."""
        self.entered.set()
        await switch.wait_open()
        return "held"

    @concurrent
    async def hold_beside(self, switch: Any) -> None:
        await switch.wait_open()

    async def cross_or_say(self, other: Any) -> str:
        await self._begin()
        try:
            return await other.ping()
        except AskCycleError:
            return "refused"
