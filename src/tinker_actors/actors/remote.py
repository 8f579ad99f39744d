"""The sender's side of messages to another process: a window for each target, and what waits for answers.

A sender keeps at most the target's mailbox size plus one of messages outstanding at a target, and at most
`WINDOW_BYTES` of them (one larger message may go alone). What exceeds the window waits here, so memory stays bounded
at a target that does not read. An ask leaves the window with its answer, a tell when it was served.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import envelope
from tinker_actors.actors.asking import WINDOW_BYTES
from tinker_actors.actors.call import Chain, inherited, inherited_trace
from tinker_actors.actors.codec import Frame
from tinker_actors.actors.control import SYSTEM_IDS
from tinker_actors.actors.deadlines import room
from tinker_actors.actors.errors import MailboxFull
from tinker_actors.actors.pending import Pending, PendingStream, PendingTell
from tinker_actors.actors.ref import Address, Options
from tinker_actors.actors.stream import Stream

if TYPE_CHECKING:
    from tinker_actors.actors.node import Node


class RemoteTarget:
    """An actor in another process, as every ref to it in this one sees it.

    Attributes:
        index, actor, mailbox: the parts of its address that every ask needs.
        outstanding, bytes: messages that the target has not answered, and their size.
        backlog: what waits for room.
    """

    __slots__ = (
        "__weakref__",
        "_tells",
        "_withdrawn",
        "actor",
        "address",
        "backlog",
        "bytes",
        "index",
        "mailbox",
        "node",
        "outstanding",
    )

    def __init__(self, node: Node, address: Address) -> None:
        self.node = node
        self.address = address
        self.index, self.actor, self.mailbox = address.node, address.id, address.mailbox
        self.outstanding = 0
        self.bytes = 0
        self.backlog: deque[tuple[Pending, bytes, Sequence[Frame]]] = deque()
        self._tells: deque[int] = deque()  # bytes of those that are not confirmed
        self._withdrawn = 0  # messages in `backlog` that are done, because their senders gave up

    def asks(self, options: Options, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        """What sends asks and awaits their outcome; being cancelled cancels the handler."""
        timeout = None if options.timeout is None else float(options.timeout)
        return partial(self.node.exchange.ask, self, method, timeout, options.wait is not False)

    def tell(
        self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Awaitable[None] | None:
        """Send a tell; with `wait=True`, an awaitable that first waits for room in the window."""
        parts = [envelope.TELL, self.address.id, method, list(args), kwargs or None, inherited_trace()]
        if options.wait:
            return self._tell_when_room(method, parts, options.timeout)
        self._submit(Pending(self, 0), parts, wait=False)
        return None

    def stream(self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Stream:
        """An iterator whose first item sends the call."""
        node = self.node
        chain, due, trace = inherited(options.timeout, node.loop)

        def begin(reader: Stream) -> PendingStream:
            pending = PendingStream(self, node.exchange.next_id(), reader)
            meta = self.meta(chain, due, trace, wait=options.wait is not False)
            parts = [envelope.STREAM, pending.id, self.address.id, method, list(args), kwargs or None, meta]
            self._submit(pending, [*parts, options.buffer], wait=options.wait is not False)
            return pending

        what = f"{self.address.name}.{method}"
        return Stream(begin, loop=node.loop, timer=node.timer, due=due, buffer=options.buffer, what=what)

    def cancel(self, pending: Pending) -> None:
        """The sender gave up. The window's place is kept until the target confirms."""
        if not pending.sent:
            pending.done = True
            self._withdrawn += 1
            if 2 * self._withdrawn > len(self.backlog):  # at once for each would cost the square of many
                self.backlog = deque(entry for entry in self.backlog if not entry[0].done)
                self._withdrawn = 0
        else:
            self.node.exchange.cancel(self.address.node, pending.id)

    def release(self, count: int, size: int) -> None:
        """Messages left the window; send what waits for their place."""
        outstanding = self.outstanding = self.outstanding - count
        self.bytes -= size
        if outstanding < 0 or self.bytes < 0:  # a peer that confirms more than it was sent
            self.outstanding, self.bytes = max(0, outstanding), max(0, self.bytes)
        while self.backlog and self._has_room(self.backlog[0][0].size):
            pending, data, frames = self.backlog.popleft()
            if pending.done:
                self._withdrawn -= 1
                continue
            self._send(pending, data, frames)
            if isinstance(pending, PendingTell) and not pending.room.done():
                pending.room.set_result(None)
        if not self.outstanding:
            self.node.exchange.busy.discard(self)

    def confirm(self, count: int) -> None:
        """The target has served `count` tells. Concurrent ones may end out of turn; in the end the bytes agree."""
        self.release(count, sum(self._tells.popleft() for _ in range(min(count, len(self._tells)))))

    @property
    def parked(self) -> tuple[int, int]:
        """Messages that wait here for room at the target, and their bytes."""
        sizes = [pending.size for pending, _, _ in self.backlog if not pending.done]
        return len(sizes), sum(sizes)

    def reset(self, error: BaseException) -> int:
        """The target's process is gone: fail what waits here; returns how many tells were never confirmed."""
        lost, self.outstanding, self.bytes = self.outstanding, 0, 0
        self._tells.clear()
        parked, self.backlog = self.backlog, deque()
        self._withdrawn = 0
        for pending, _, _ in parked:
            if not pending.done:
                pending.reject(copy.copy(error))
        return lost

    def meta(self, chain: Chain, due: float | None, trace: str | None, *, wait: bool) -> list[Any]:
        """The envelope's part that says how a message is to be served."""
        left = None if due is None else due - self.node.loop.time()
        return [left, [list(step) for step in chain], int(not wait), trace]

    async def _tell_when_room(self, method: str, parts: list[Any], timeout: float | None) -> None:
        pending = PendingTell(self, 0)
        pending.room = self.node.loop.create_future()
        self._submit(pending, parts, wait=True)
        if pending.sent:
            return
        try:
            await room(pending.room, timeout, f"{self.address.name}.{method}")
        finally:
            if not pending.sent and not pending.done:
                self.cancel(pending)

    def _submit(self, pending: Pending, parts: list[Any], *, wait: bool) -> None:
        """Encode, and send or park.

        Raises:
            UnroutableError, NodeDiedError: there is no such node, or none any more.
            CodecError: the arguments can't be sent.
            MailboxFull: no room, and `wait` is False.
        """
        exchange = self.node.exchange
        exchange.require(self.address.node)
        data, frames, size = exchange.encode(parts)
        pending.size = size
        if not self.backlog and (not self.outstanding or self._has_room(size)):
            self._send(pending, data, frames)
        elif wait:
            self.backlog.append((pending, data, frames))
            exchange.busy.add(self)
        else:
            raise self.full()

    def submit(
        self,
        pending: Pending,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        meta: list[Any] | float | None,
        *,
        wait: bool,
    ) -> None:
        """Send or park an ask whose answer goes to `pending`; raises as an ask does."""
        parts = [envelope.ASK, pending.id, self.address.id, method, list(args), kwargs or None, meta]
        self._submit(pending, parts, wait=wait)

    def has_room(self, size: int) -> bool:
        """Whether a message of `size` bytes may go at once."""
        return not self.backlog and self._has_room(size)

    def take(self, size: int) -> None:
        """Count a message of `size` bytes that goes at once."""
        if not self.outstanding:
            self.node.exchange.busy.add(self)
        self.outstanding += 1
        self.bytes += size

    def take_tell(self, size: int) -> None:
        """Count a tell of `size` bytes that goes at once."""
        self.take(size)
        self._tells.append(size)

    def full(self) -> MailboxFull:
        """The refusal of a sender that doesn't wait."""
        return MailboxFull(
            f"{self.outstanding} messages to {self.address.name} are outstanding, its mailbox size is "
            f"{self.address.mailbox}"
        )

    def _has_room(self, size: int) -> bool:
        return self.outstanding <= self.address.mailbox and (not self.outstanding or self.bytes + size <= WINDOW_BYTES)

    def _send(self, pending: Pending, data: bytes, frames: Sequence[Frame]) -> None:
        exchange, ident = self.node.exchange, pending.id
        if not self.outstanding:
            exchange.busy.add(self)
        self.outstanding += 1
        pending.sent = True
        self.bytes += pending.size
        if ident:
            exchange.pending[ident] = pending
        else:
            self._tells.append(pending.size)
        address = self.address
        exchange.send_request(address.node, (address.id,), ident, data, frames, system=address.id < SYSTEM_IDS)
