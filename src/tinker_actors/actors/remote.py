"""The sender's side of messages to another process: a window for each target, and what waits for answers.

A sender keeps at most the target's mailbox size plus one of messages outstanding at a target, and at most
`WINDOW_BYTES` of them (one larger message may go alone). What exceeds the window waits here, so memory stays bounded
at a target that does not read. An ask leaves the window with its answer, a tell when it was served.
"""

from __future__ import annotations

import asyncio
import copy
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import envelope, traceparent
from tinker_actors.actors.buffers import LARGE, PLAIN
from tinker_actors.actors.call import Chain, current_call, inherited, inherited_trace
from tinker_actors.actors.codec import Frame
from tinker_actors.actors.control import SYSTEM_IDS
from tinker_actors.actors.errors import MailboxFull
from tinker_actors.actors.ref import Address, Options, positional
from tinker_actors.actors.stream import Stream

if TYPE_CHECKING:
    from tinker_actors.actors.node import Node

WINDOW_BYTES = 128 * 1024 * 1024


class Pending:
    """One message of ours at another node, until its last answer. `id` is 0 for tells."""

    __slots__ = ("done", "id", "sent", "size", "target")

    def __init__(self, target: RemoteTarget, ident: int) -> None:
        self.target = target
        self.id = ident
        self.sent = False
        self.done = False
        self.size = 0

    def resolve(self, value: Any) -> None:
        """The reply, or the end of a stream."""

    def reject(self, error: BaseException) -> None:
        """An error in its place."""

    def item(self, value: Any) -> None:
        """One item of a stream."""

    def outcomes(self, values: Sequence[tuple[int, Any]], errors: Sequence[tuple[int, BaseException]]) -> bool:
        """Answers of some members of a group; True once all have answered."""
        return False

    def settle(self, value: Any) -> None:
        """The reply; leaves the window."""
        self.resolve(value)
        self.release()

    def release(self) -> None:
        """Leave the window."""
        self.target.release(1, self.size)

    def forget(self) -> None:
        """The target's process is gone; what it held was no tell."""
        self.target.outstanding -= 1


class PendingAsk(Pending):
    """An ask that waits for its reply."""

    __slots__ = ("future",)

    def __init__(self, target: RemoteTarget, ident: int, future: asyncio.Future[Any]) -> None:
        # The base's assignments again, because this runs once an ask.
        self.target = target
        self.id = ident
        self.sent = False
        self.done = False
        self.size = 0
        self.future = future

    def resolve(self, value: Any) -> None:
        self.done = True
        if not self.future.done():
            self.future.set_result(value)

    def settle(self, value: Any) -> None:
        # Both at once, because this runs once an ask.
        self.done = True
        if not self.future.done():
            self.future.set_result(value)
        target = self.target
        if target.outstanding > 1 and target.bytes >= self.size and not target.backlog:
            target.outstanding -= 1
            target.bytes -= self.size
        else:
            target.release(1, self.size)

    def reject(self, error: BaseException) -> None:
        self.done = True
        if not self.future.done():
            self.future.set_exception(error)


class PendingTell(Pending):
    """A tell that waits for room in the window; `room` is awaited by its sender."""

    __slots__ = ("room",)

    room: asyncio.Future[None]

    def reject(self, error: BaseException) -> None:
        self.done = True
        if not self.room.done():
            self.room.set_exception(error)


class PendingStream(Pending):
    """A stream; also the reader's way back to its producer."""

    __slots__ = ("reader",)

    def __init__(self, target: RemoteTarget, ident: int, reader: Stream) -> None:
        super().__init__(target, ident)
        self.reader = weakref.ref(reader)

    def resolve(self, value: Any) -> None:
        self._finish(None)

    def reject(self, error: BaseException) -> None:
        self._finish(error)

    def item(self, value: Any) -> None:
        reader = self.reader()
        if reader is not None:
            reader.push(value)

    def grant(self, count: int) -> None:
        """The reader has room for more."""
        if not self.done:
            self.target.node.exchange.send(self.target.address.node, [envelope.CREDIT, self.id, count])

    def abandon(self) -> None:
        """The reader is gone."""
        if not self.done:
            self.target.cancel(self)

    def _finish(self, error: BaseException | None) -> None:
        self.done = True
        reader = self.reader()
        if reader is not None:
            reader.finish(error)


class RemoteTarget:
    """An actor in another process, as every ref to it in this one sees it."""

    __slots__ = ("__weakref__", "_tells", "address", "backlog", "bytes", "node", "outstanding")

    def __init__(self, node: Node, address: Address) -> None:
        self.node = node
        self.address = address
        self.outstanding = 0
        self.bytes = 0
        self.backlog: deque[tuple[Pending, bytes, Sequence[Frame]]] = deque()
        self._tells: deque[int] = deque()  # bytes of those that are not confirmed

    def asks(self, options: Options, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        """What sends asks; see `ask`."""
        return positional(self.ask, options, method)

    async def ask(self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Send an ask and await its outcome; being cancelled cancels the handler."""
        node = self.node
        loop = node.loop
        due = options.timeout
        if current_call.get() is None and traceparent.bridge is None and options.wait is not False:
            meta = due
            if due is not None:
                now = loop.time()
                due += now
                meta = due - now  # a float in any case
        else:
            chain, due, trace = inherited(due, loop)
            if chain or trace is not None or options.wait is False:
                meta = self.meta(chain, due, trace, options)
            else:
                meta = None if due is None else due - loop.time()
        future = loop.create_future()
        ident = node.exchange.next_id()
        pending = PendingAsk(self, ident, future)
        parts = [envelope.ASK, ident, self.address.id, method, [*args], kwargs or None, meta]
        if kwargs or not self._send_plain(pending, parts):
            self._submit(pending, parts, wait=options.wait is not False)
        del parts
        bucket = None if due is None else node.timer.add(future, due, (self.address.name, method))
        try:
            return await future
        finally:
            if bucket is not None:
                bucket.pop(future, None)
            if not pending.done:
                self.cancel(pending)
            del bucket, future, pending  # an error would be in a cycle with this frame, and so would the arguments

    def tell(
        self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Awaitable[None] | None:
        """Send a tell; with `wait=True`, an awaitable that first waits for room in the window."""
        parts = [envelope.TELL, self.address.id, method, list(args), kwargs or None, inherited_trace()]
        if options.wait:
            return self._tell_when_room(parts)
        self._submit(Pending(self, 0), parts, wait=False)
        return None

    def stream(self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Stream:
        """An iterator whose first item sends the call."""
        node = self.node
        chain, due, trace = inherited(options.timeout, node.loop)

        def begin(reader: Stream) -> PendingStream:
            pending = PendingStream(self, node.exchange.next_id(), reader)
            meta = self.meta(chain, due, trace, options)
            parts = [envelope.STREAM, pending.id, self.address.id, method, list(args), kwargs or None, meta]
            self._submit(pending, [*parts, options.buffer], wait=options.wait is not False)
            return pending

        what = f"{self.address.name}.{method}"
        return Stream(begin, loop=node.loop, timer=node.timer, due=due, buffer=options.buffer, what=what)

    def cancel(self, pending: Pending) -> None:
        """The sender gave up. The window's place is kept until the target confirms."""
        if not pending.sent:
            self.backlog = deque(entry for entry in self.backlog if entry[0] is not pending)
            pending.done = True
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
        return len(self.backlog), sum(pending.size for pending, _, _ in self.backlog)

    def reset(self, error: BaseException) -> int:
        """The target's process is gone: fail what waits here; returns how many tells were never confirmed."""
        lost, self.outstanding, self.bytes = self.outstanding, 0, 0
        self._tells.clear()
        parked, self.backlog = self.backlog, deque()
        for pending, _, _ in parked:
            pending.reject(copy.copy(error))
        return lost

    def meta(self, chain: Chain, due: float | None, trace: str | None, options: Options) -> list[Any]:
        """The envelope's part that says how a message is to be served."""
        left = None if due is None else due - self.node.loop.time()
        return [left, [list(step) for step in chain], int(options.wait is False), trace]

    async def _tell_when_room(self, parts: list[Any]) -> None:
        pending = PendingTell(self, 0)
        pending.room = self.node.loop.create_future()
        self._submit(pending, parts, wait=True)
        if pending.sent:
            return
        try:
            await pending.room
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
        data, frames = exchange.encode(parts)
        size = pending.size = len(data) + sum(frame.nbytes for frame in frames) if frames else len(data)
        if not self.backlog and (not self.outstanding or self._has_room(size)):
            self._send(pending, data, frames)
        elif wait:
            self.backlog.append((pending, data, frames))
            exchange.busy.add(self)
        else:
            raise self.full()

    def _send_plain(self, pending: Pending, parts: list[Any]) -> bool:
        """Send an ask at once, as `_submit` would; False, with nothing done, if it is not as simple as most are.

        All in one piece, because this runs once an ask.
        """
        for value in parts[4]:
            if value.__class__ not in PLAIN and not (value.__class__ is bytes and len(value) < LARGE):
                return False
        node, address, outstanding = self.node, self.address, self.outstanding
        exchange = node.exchange
        peer = exchange.by_index.get(address.node)
        if peer is None or not peer.is_open or peer.dead is not None or peer.cut is not None or exchange.closed:
            return False
        link, lane = peer.link, peer.lane
        if link is None or outstanding > address.mailbox or self.backlog or (lane is not None and lane.waiting):
            return False
        try:
            data = node.codec.write(parts)
        except Exception:  # `_submit` says what is wrong with it, or finds another way
            return False
        size = len(data)
        if size > exchange.max_message or (outstanding and self.bytes + size > WINDOW_BYTES):
            return False
        if not outstanding:
            exchange.busy.add(self)
        self.outstanding = outstanding + 1
        self.bytes += size
        pending.size = size
        pending.sent = True
        waiting = exchange.pending
        waiting[parts[1]] = pending
        link.put(data, now=exchange.last_inbound <= 1 and len(waiting) <= 1)
        return True

    def submit(
        self,
        pending: Pending,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        meta: list[Any] | None,
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
