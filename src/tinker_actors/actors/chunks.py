"""Large data over a socket: in chunks, on a connection of its own, so that small messages never wait behind it.

A transfer's chunks are acknowledged over the ordinary link, and at most `WINDOW` bytes are unacknowledged. Transfers
to one peer take turns. The message that a transfer belongs to leaves when all of it has arrived.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import packing
from tinker_actors.actors.errors import CodecError
from tinker_actors.actors.leases import read

if TYPE_CHECKING:
    from tinker_actors.actors.arena import Arena, Block
    from tinker_actors.actors.codec import Frame
    from tinker_actors.actors.link import Outbound

CHUNK = 256 * 1024  # bytes
WINDOW = 8 * 1024 * 1024  # bytes on their way to one peer
SUFFIX = b"/bulk"  # of the identity of a connection for chunks
_channels = itertools.count(1)  # tells a connection's chunks from those of the ones before it


class Transfer:
    """One buffer on its way."""

    __slots__ = ("acknowledged", "done", "frame", "id", "is_bytes", "sent", "size")

    def __init__(self, ident: int, frame: Frame, is_bytes: bool, done: Callable[[int], None]) -> None:
        self.id = ident
        self.is_bytes = is_bytes
        self.frame = memoryview(frame)
        self.size = self.frame.nbytes
        self.done = done
        self.sent = 0
        self.acknowledged = 0


class Outflow:
    """The transfers to one incarnation of a peer. `connect` makes their connection when there is a first one.

    At most `budget` bytes of transfers have begun whose messages have not left, so that the peer's memory is bounded.
    """

    def __init__(self, connect: Callable[[], Outbound], budget: int) -> None:
        self._connect = connect
        self._budget = budget
        self._link: Outbound | None = None
        self._channel = next(_channels)
        self._made = 0
        self._waiting: deque[Transfer] = deque()
        self._turns: deque[Transfer] = deque()
        self._open: dict[int, Transfer] = {}
        self._undelivered = 0
        self._in_flight = 0

    def submit(self, frame: Frame, is_bytes: bool, done: Callable[[int], None]) -> None:
        """Send a buffer, which is to be `bytes` there or an array's memory; `done` gets its id when it has arrived.

        Raises:
            OSError: the connection can't be made.
        """
        if self._link is None:
            self._link = self._connect()
            self._link.leads = False
        self._made += 1
        self._waiting.append(Transfer(self._made, frame, is_bytes, done))
        self._pump()

    def delivered(self, size: int) -> None:
        """A message has left that `size` bytes of transfers belong to."""
        self._undelivered -= size
        self._pump()

    def acknowledge(self, ident: int, count: int) -> None:
        """`count` more bytes of a transfer have arrived."""
        transfer = self._open.get(ident)
        if transfer is None:
            return  # of a link before this one
        self._in_flight -= count
        transfer.acknowledged += count
        if transfer.acknowledged >= transfer.size:
            del self._open[ident]
            transfer.done(ident)
        self._pump()

    def close(self) -> None:
        """Send no more."""
        self._waiting.clear()
        self._turns.clear()
        self._open.clear()
        if self._link is not None:
            self._link.close()

    def _pump(self) -> None:
        while self._waiting and (not self._undelivered or self._undelivered + self._waiting[0].size <= self._budget):
            transfer = self._waiting.popleft()
            self._undelivered += transfer.size
            self._open[transfer.id] = transfer
            self._turns.append(transfer)
        while self._turns and self._in_flight < WINDOW:
            transfer = self._turns.popleft()
            chunk = transfer.frame[transfer.sent : transfer.sent + CHUNK]
            head = packing.pack([self._channel, transfer.id, transfer.sent, transfer.size, transfer.is_bytes])
            assert self._link is not None
            self._link.put(head, [chunk], now=True)
            transfer.sent += chunk.nbytes
            self._in_flight += chunk.nbytes
            if transfer.sent < transfer.size:
                self._turns.append(transfer)


class Arrival:
    """A buffer that is being put together, in `block` if that is not None."""

    __slots__ = ("block", "buffer", "is_bytes", "received", "size")

    def __init__(self, buffer: memoryview, block: Block | None, is_bytes: bool) -> None:
        self.buffer: memoryview | bytes = buffer
        self.block = block
        self.is_bytes = is_bytes
        self.size = buffer.nbytes
        self.received = 0


class Inflow:
    """The transfers from one incarnation of a peer, at most `limit` bytes that no message has claimed yet."""

    def __init__(self, limit: int, arena: Callable[[], Arena | None]) -> None:
        self._limit = limit
        self._arena = arena
        self._arrivals: dict[int, Arrival] = {}
        self._held = 0
        self._channel = 0

    def chunk(self, data: bytes, chunk: Frame) -> tuple[int, int] | None:
        """Take a chunk; returns the transfer's id and the bytes to acknowledge, or None if its connection is gone.

        Raises:
            CodecError: it fits nowhere.
        """
        (channel, ident, offset, size, is_bytes), _ = packing.unpack(data, _no_extensions)
        if channel < self._channel:
            return None
        if channel > self._channel:
            self._channel, self._held = channel, 0
            self._arrivals.clear()
        arrival = self._arrivals.get(ident)
        if arrival is None:
            if not isinstance(size, int) or size < 1 or self._held + size > self._limit:
                raise CodecError(f"a transfer of {size} bytes while {self._held} of at most {self._limit} are held")
            arrival = self._arrivals[ident] = self._arrival(size, bool(is_bytes))
            self._held += size
        count = memoryview(chunk).nbytes
        if offset != arrival.received or offset + count > arrival.size:
            raise CodecError(f"a chunk of {count} bytes at {offset} after {arrival.received} of {arrival.size}")
        assert isinstance(arrival.buffer, memoryview)
        arrival.buffer[offset : offset + count] = chunk
        arrival.received += count
        return ident, count

    def reader(self, ident: int) -> Callable[[], bytes] | None:
        """What makes `bytes` of a whole buffer off the loop, if that is wanted and can be had."""
        arrival = self._arrivals[ident]
        block = arrival.block
        if block is None or not arrival.is_bytes or arrival.received < arrival.size:
            return None
        return functools.partial(_read, arrival.buffer, block.segment.fd, arrival.size, block.offset)

    def replace(self, ident: int, data: bytes) -> None:
        """What its reader made of a buffer."""
        arrival = self._arrivals.get(ident)
        if arrival is not None:
            arrival.buffer, arrival.block = data, None

    def take(self, ident: int) -> memoryview | bytes:
        """A whole buffer, for the message that it belongs to.

        Raises:
            CodecError: there is no such transfer, or it isn't whole.
        """
        arrival = self._arrivals.get(ident)
        if arrival is None or arrival.received < arrival.size:
            raise CodecError(f"a message names transfer {ident}, which has not arrived")
        del self._arrivals[ident]
        self._held -= arrival.size
        return arrival.buffer

    def close(self) -> None:
        """Drop what no message has claimed."""
        self._arrivals.clear()

    def _arrival(self, size: int, is_bytes: bool) -> Arrival:
        """Memory for a transfer: warm pages of the arena if it has room."""
        import numpy as np

        arena = self._arena()
        block = arena.allocate(size) if arena is not None else None
        if arena is None or block is None:
            own: Any = np.empty(size, np.uint8)
            return Arrival(memoryview(own), None, is_bytes)
        root: Any = block.root(size)
        arena.hold(block, root)
        return Arrival(memoryview(root), block, is_bytes)


def _read(memory: memoryview | bytes, fd: int, size: int, offset: int) -> bytes:
    """`read`; being an argument keeps the memory in place meanwhile."""
    return read(fd, size, offset)


def _no_extensions(code: int, data: bytes) -> Any:
    raise CodecError(f"an extension type {code} in the head of a chunk")
