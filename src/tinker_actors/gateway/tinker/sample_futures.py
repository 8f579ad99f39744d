"""The futures of sampling sessions: one for each request however often it is sent, and which of them are done."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from tinker_actors.gateway.futures import Future

CLONE = 1_000_000_000
"""Sequence numbers of a session's n-th clone begin at n times this."""

_MOST_LOGS = 4096
_MOST_UNSEEN = 65_536
"""Finished requests that a log keeps for a client that doesn't poll any more."""


class SampleFutures:
    """The futures of all sampling sessions, as long as their answers are kept.

    A request is known by its session and sequence number. Clients that poll a whole session read from its log what is
    done; a log begins with the first poll and forgets what the client says that it has seen.
    """

    def __init__(self) -> None:
        self._futures: WeakValueDictionary[tuple[str, int], Future] = WeakValueDictionary()
        self._done: WeakSet[Future] = WeakSet()
        self._logs: OrderedDict[tuple[str, int], _Log] = OrderedDict()

    def find(self, sampler_id: str, seq_id: int) -> Future | None:
        """The future of a request that was sent before, if its answer is kept."""
        return self._futures.get((sampler_id, seq_id))

    def add(self, sampler_id: str, seq_id: int, future: Future) -> None:
        """Remember the future of a request; its task has just begun."""
        self._futures[sampler_id, seq_id] = future
        assert future.task is not None
        future.task.add_done_callback(lambda _: self._end(sampler_id, seq_id, future))

    async def completions(self, sampler_id: str, clone: int, cursor: int, timeout: float) -> Mapping[str, Any]:
        """What of a session's clone is done since a cursor.

        Args:
            sampler_id: The sampling session.
            clone: Which of its clients asks.
            cursor: What it has seen: the cursor of an answer before, 0 at first.
            timeout: Seconds to wait for something to be done.
        """
        log = self._log(sampler_id, clone)
        return await log.since(cursor, timeout)

    def _log(self, sampler_id: str, clone: int) -> _Log:
        key = sampler_id, clone
        if key not in self._logs:
            self._logs[key] = log = _Log()
            for (sampler, seq_id), future in sorted(self._futures.items(), key=lambda entry: entry[0]):
                if (sampler, seq_id // CLONE) == key and future in self._done:
                    log.add(future)
            while len(self._logs) > _MOST_LOGS:
                self._logs.popitem(last=False)
        self._logs.move_to_end(key)
        return self._logs[key]

    def _end(self, sampler_id: str, seq_id: int, future: Future) -> None:
        self._done.add(future)
        log = self._logs.get((sampler_id, seq_id // CLONE))
        if log is not None:
            log.add(future)


class _Log:
    """What is done, each with a number that grows, also over a restart of the service."""

    def __init__(self) -> None:
        self._number = time.time_ns() // 1_000_000
        self._entries: deque[tuple[int, dict[str, Any]]] = deque(maxlen=_MOST_UNSEEN)
        self._more = asyncio.Event()

    def add(self, future: Future) -> None:
        answer = future.answer
        assert answer is not None
        self._number += 1
        if answer.failed:
            entry: dict[str, Any] = {"state": "failed", "request_id": future.request_id}
        else:
            size = len(answer.content)
            entry = {"state": "finished", "request_id": future.request_id, "response_payload_uncompressed_size": size}
        self._entries.append((self._number, entry))
        self._more.set()

    async def since(self, cursor: int, timeout: float) -> Mapping[str, Any]:
        while self._entries and self._entries[0][0] <= cursor:
            self._entries.popleft()
        if not self._entries and timeout > 0:
            self._more.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._more.wait()
            except TimeoutError:
                pass
        entries = [(number, entry) for number, entry in self._entries if number > cursor]
        return {
            "completions": [entry for _, entry in entries],
            "cursor": max([cursor, *(number for number, _ in entries)]),
        }
