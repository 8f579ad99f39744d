"""One process's share of a barrier: what arrives there in one turn of the event loop goes to the hub together."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from tinker_actors.actors.call import inherited
from tinker_actors.actors.errors import BarrierBrokenError, BarrierError, DeadlineExceeded

if TYPE_CHECKING:
    from tinker_actors.actors.node import Node
    from tinker_actors.actors.ref import ActorRef


class Batch:
    """The parties that arrived in one turn for one phase, each with its future."""

    __slots__ = ("id", "phase", "sent", "waiters")

    def __init__(self, ident: tuple[int, int, int], phase: int | None) -> None:
        self.id = ident
        self.phase = phase
        self.sent = False
        self.waiters: dict[int | str, asyncio.Future[int]] = {}


class BarrierSite:
    """See the module. There is one for each barrier in a process that has parties of it."""

    def __init__(self, node: Node, hub: ActorRef) -> None:
        self._node = node
        self._hub: Any = hub
        self._name = hub.address.name
        self._next = itertools.count().__next__
        self._batch: Batch | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def of(cls, node: Node, hub: ActorRef) -> BarrierSite:
        """The site of a barrier on this node."""
        site = node.barrier_sites.get(hub.address.id)
        if site is None:
            site = node.barrier_sites[hub.address.id] = cls(node, hub)
        return site

    async def arrive(self, key: int | str, phase: int | None, timeout: float | None) -> int:
        """See `Barrier.arrive`."""
        node = self._node
        _, due, _ = inherited(timeout, node.loop)
        batch = self._batch
        if batch is None or batch.phase != phase or key in batch.waiters:
            batch = self._begin(phase)
        waiter = batch.waiters[key] = node.loop.create_future()
        if due is None:
            try:
                return await waiter
            except asyncio.CancelledError:
                self._withdraw(batch, key, "was cancelled while it waited")
                raise
        bucket = node.timer.add(waiter, due, f"phase of barrier {self._name}")
        try:
            return await waiter
        except DeadlineExceeded:
            self._withdraw(batch, key, "waited until its deadline")
            raise
        except asyncio.CancelledError:
            self._withdraw(batch, key, "was cancelled while it waited")
            raise
        finally:
            bucket.pop(waiter, None)

    def _begin(self, phase: int | None) -> Batch:
        """A batch for what arrives from now on in this turn."""
        if self._batch is not None:
            self._send(self._batch)
        node = self._node
        batch = self._batch = Batch((node.index, node.incarnation, self._next()), phase)
        node.loop.call_soon(self._send, batch, context=node.context)
        return batch

    def _send(self, batch: Batch) -> None:
        if batch.sent:
            return
        batch.sent = True
        if self._batch is batch:
            self._batch = None
        task = self._node.loop.create_task(self._wait(batch), context=self._node.context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _withdraw(self, batch: Batch, key: int | str, why: str) -> None:
        """Tell the hub that a party no longer waits, after it was told that it does."""
        self._send(batch)
        self._node.loop.call_soon(self._tell, batch, key, why, context=self._node.context)

    def _tell(self, batch: Batch, key: int | str, why: str) -> None:
        if batch.waiters:
            self._hub.tell.withdraw(batch.id, key, why)

    async def _wait(self, batch: Batch) -> None:
        """Wait for the hub with all of a batch, and pass on how it ended."""
        waiters = batch.waiters
        try:
            while waiters:
                passed, refused = await self._hub.arrive(batch.id, list(waiters), batch.phase)
                if not refused:
                    for waiter in waiters.values():
                        if not waiter.done():
                            waiter.set_result(passed)
                    return
                for key, error in refused.items():
                    _fail(waiters.pop(key), error)
        except BarrierBrokenError as error:
            for waiter in waiters.values():
                _fail(waiter, error.again())
        except Exception as error:  # whatever it is, nobody is left waiting
            for waiter in waiters.values():
                _fail(waiter, BarrierBrokenError(-1, f"barrier {self._name} is gone: {error}", error))
        finally:
            batch.waiters = {}


def _fail(waiter: asyncio.Future[int], error: BarrierError) -> None:
    if not waiter.done():
        waiter.set_exception(error)
