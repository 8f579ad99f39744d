"""Answers that take longer than a request: a client gets a request id at once and comes back for the answer."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import orjson

from tinker_actors.gateway.caller import Caller
from tinker_actors.gateway.faults import Fault, fault_of
from tinker_actors.gateway.refusals import RefusalError

_OVERHEAD = 500
"""Bytes that a future takes beside its answer's content."""

_TIDY_EVERY = 1.0
"""Seconds in which answers that are too old may stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a future came to, as it is sent.

    Attributes:
        content: The body.
        media_type: Of the body.
        plain: Makes the same answer as JSON data, for clients that don't read protobuf; None if `content` is JSON.
        failed: Whether it says that the request failed.
    """

    content: bytes
    media_type: Literal["application/json", "application/x-protobuf"] = "application/json"
    plain: Callable[[], Any] | None = None
    failed: bool = False

    @classmethod
    def of(cls, content: object) -> Answer:
        """An answer in JSON."""
        return cls(content=orjson.dumps(content))

    @classmethod
    def failure(cls, fault: Fault) -> Answer:
        """An answer that says what went wrong, and whose fault it was."""
        return cls(content=orjson.dumps({"error": fault.text, "category": fault.category}), failed=True)


@dataclass(slots=True, kw_only=True, weakref_slot=True, eq=False)
class Future:
    """One request under way, or its answer.

    Attributes:
        request_id: Names it to its tenant's clients.
        tenant: Whose it is.
        kind: What was asked, for logs.
        answer: None while it is under way.
        read: Whether its answer was ever fetched.
    """

    request_id: str
    tenant: str
    kind: str
    answer: Answer | None = None
    read: bool = False
    settled_at: float = 0.0
    task: asyncio.Task[Any] | None = None
    # none once it is settled: what is kept for minutes consists of few objects, which the collector looks through
    _settled: asyncio.Event | None = field(default_factory=asyncio.Event)

    def settle(self, answer: Answer) -> bool:
        """Give the answer; says whether it was the first, since only that counts."""
        if self.answer is not None:
            return False
        self.answer, self.settled_at = answer, time.monotonic()
        if self._settled is not None:
            self._settled.set()
            self._settled = None
        return True

    async def settled(self, seconds: float) -> bool:
        """Wait for the answer, at most so long; says whether it is there."""
        if self._settled is None:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._settled.wait()
        except TimeoutError:
            return False
        return True


class Futures:
    """The futures of all tenants.

    An answer can be fetched any number of times, since a response may be lost, until it is dropped: two minutes after
    it was first fetched, an hour after it was made, or when all answers together take too much memory: those of the
    tenants that have most of it, the ones that were fetched first.

    Args:
        limit: Bytes that answers may take together.
        kept: Seconds that an answer is kept for its first reader.
        kept_read: Seconds that one is kept that was fetched; who lost the response asks again within 75.
    """

    def __init__(self, *, limit: int = 512 * 2**20, kept: float = 3600.0, kept_read: float = 120.0) -> None:
        self._limit, self._kept, self._kept_read = limit, kept, kept_read
        self._all: OrderedDict[str, Future] = OrderedDict()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.bytes = 0
        self._of_tenants: Counter[str] = Counter()
        self._tidied = 0.0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def pending(self) -> int:
        """How many are under way."""
        return sum(future.answer is None for future in self._all.values())

    def open(self, tenant: str, kind: str) -> Future:
        """A new future of a tenant's, to be settled by whoever opened it."""
        future = Future(request_id=secrets.token_hex(16), tenant=tenant, kind=kind)
        self._all[future.request_id] = future
        return future

    def start(self, tenant: str, kind: str, work: Coroutine[Any, Any, Answer]) -> Future:
        """A new future whose answer some work makes; whatever the work raises becomes its answer."""
        future = self.open(tenant, kind)
        future.task = asyncio.create_task(self._settle(future, work), name=f"{kind} {future.request_id}")
        self._tasks.add(future.task)
        future.task.add_done_callback(partial(self._ended, future, work))
        return future

    def settle(self, future: Future, answer: Answer) -> None:
        """Give a future's answer, and drop old ones where it is too much with them."""
        if future.settle(answer):
            self._count(future.tenant, _OVERHEAD + len(answer.content))
            # looking at all of them for every answer would take longer than the answers
            if self.bytes > self._limit or time.monotonic() >= self._tidied + _TIDY_EVERY:
                self.tidy()

    def fail(self, future: Future, error: BaseException) -> None:
        """Answer with what went wrong, and whose fault it was."""
        self.settle(future, Answer.failure(fault_of(error, during=future.kind)))

    def find(self, caller: Caller, request_id: str) -> Future:
        """A future of the caller's tenant.

        Raises:
            RefusalError: With 410: there is none, its answer was dropped, or the service was started anew meanwhile;
                one can't tell which. The client's library asks again where that is right.
        """
        future = self._all.get(request_id)
        if future is None or (future.tenant != caller.tenant and not caller.sees_all):
            raise RefusalError(
                410,
                f"request_id {request_id!r} is not known, or its answer is no longer kept; send the request again",
                code="gone",
            )
        return future

    def cancel(self, future: Future) -> None:
        """Stop the work that `start` began; a future that is settled stays as it is."""
        if future.task is not None:
            future.task.cancel()

    def fetched(self, future: Future) -> None:
        """Tell that an answer was sent: from now on it is kept for a while only."""
        if not future.read:
            future.read, future.settled_at = True, time.monotonic()

    def forget(self, caller: Caller, request_id: str) -> None:
        """Drop an answer that its reader has; what is under way or not known stays as it is."""
        future = self._all.get(request_id)
        if future is not None and future.answer is not None and (future.tenant == caller.tenant or caller.sees_all):
            self._drop(future)

    def tidy(self) -> None:
        """Drop answers that are too old, then of the tenants that have most, fetched ones first, then the oldest."""
        self._tidied = now = time.monotonic()
        for future in [future for future in self._all.values() if self._is_over(future, now)]:
            self._drop(future)
        if self.bytes <= self._limit:
            return
        most = _fair_share(self._of_tenants.values(), self._limit)
        settled = [future for future in self._all.values() if future.answer is not None]
        for future in sorted(settled, key=lambda future: not future.read):
            if self._of_tenants[future.tenant] > most:
                self._drop(future)

    async def close(self) -> None:
        """End all work that is under way; its futures fail."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_over(self, future: Future, now: float) -> bool:
        kept = self._kept_read if future.read else self._kept
        return future.answer is not None and now - future.settled_at > kept

    def _drop(self, future: Future) -> None:
        if self._all.pop(future.request_id, None) is not None and future.answer is not None:
            self._count(future.tenant, -_OVERHEAD - len(future.answer.content))

    def _count(self, tenant: str, size: int) -> None:
        self.bytes += size
        self._of_tenants[tenant] += size
        if not self._of_tenants[tenant]:
            del self._of_tenants[tenant]

    async def _settle(self, future: Future, work: Coroutine[Any, Any, Answer]) -> None:
        try:
            answer = await work
        except Exception as error:  # the boundary: a client hears of every error through its future
            self.fail(future, error)
        else:
            self.settle(future, answer)

    def _ended(self, future: Future, work: Coroutine[Any, Any, Answer], task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        future.task = None
        if future.answer is None:  # cancelled, perhaps before the work began
            work.close()
            fault = Fault(status=499, category="user", text=f"{future.kind} was cancelled", code="cancelled")
            self.settle(future, Answer.failure(fault))


def _fair_share(amounts: Iterable[int], room: int) -> float:
    """The most that each may have so that all have room, where who has less keeps it."""
    left, rising = room, sorted(amounts)
    for place, amount in enumerate(rising):
        share = left / (len(rising) - place)
        if amount > share:
            return share
        left -= amount
    return float("inf")
