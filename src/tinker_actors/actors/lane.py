"""How large buffers leave a process, by whichever way reaches the peer.

Buffers of `LARGE` bytes and more do not travel in the message's own frames. To a peer of the same host they go through
shared memory, copied into it off the loop unless they already lie there; otherwise, and where the arena is full, in
chunks on a connection of their own. A frame of the message then is a short descriptor: since a buffer that travels as
a frame has at least `OUT_OF_BAND` bytes, a shorter frame can't be one.

A message leaves when its buffers are ready. Those of the same sender to the same actor, or of the same stream, wait
for it, so their order is kept; all others pass. Bytes are made into `bytes` at the receiver before that, because doing
it in the message would block the receiver's loop for as long as the copy takes.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import packing
from tinker_actors.actors.arena import Arena, Block
from tinker_actors.actors.bulk import INLINE, Bulk
from tinker_actors.actors.chunks import Inflow, Outflow
from tinker_actors.actors.codec import OUT_OF_BAND, Frame
from tinker_actors.actors.errors import CodecError
from tinker_actors.actors.late_data import current_core
from tinker_actors.actors.leases import Borrower

if TYPE_CHECKING:
    from tinker_actors.actors.link import Outbound

LARGE = 1 << 20  # bytes

# Kinds of descriptors; and of [BULK, kind, value] envelopes, of which MADE is also one
LOAN, TRANSFER, MADE = 0, 1, 2
OFFER, ACCEPT, FREE, DROP, RECEIVED, MAKE = 3, 4, 5, 6, 7, 8

_pack = packing.plain_encoder()


class Parcel:
    """A message with buffers, some of which are not ready yet; `keys` as in `Lane.put`."""

    __slots__ = ("data", "frames", "keys", "missing", "now", "transferred")

    def __init__(self, data: bytes, frames: Sequence[Frame], keys: Sequence[int], now: bool) -> None:
        self.data = data
        self.frames = list(frames)
        self.keys = keys
        self.now = now
        self.missing = 0
        self.transferred = 0  # bytes sent in chunks


class Lane:
    """Large data from and to one incarnation of a peer.

    Args:
        bulk: what all lanes of the process share.
        link: for messages.
        control: sends the peer an envelope [BULK, kind, value].
        connect: makes the connection for chunks.
        same_host: whether to offer shared memory.

    Attributes:
        waiting: messages by what their order depends on (see `put`), each behind one whose buffers aren't ready.
    """

    def __init__(
        self,
        bulk: Bulk,
        link: Outbound,
        control: Callable[[int, Any], None],
        connect: Callable[[], Outbound],
        *,
        same_host: bool,
    ) -> None:
        self._bulk = bulk
        self._link = link
        self._control = control
        self._outflow = Outflow(connect, bulk.max_message)
        self._inflow = Inflow(2 * bulk.max_message, lambda: bulk.arena)
        self._borrower = Borrower(bulk.loop, lambda leases: control(FREE, leases), bulk.returning)
        self._is_shared = False
        self._lent: dict[int, Block] = {}
        self._leases = 0
        self._making: dict[int, Callable[[], None]] = {}
        self._made: dict[int, bytes] = {}
        self._closed = False
        self.waiting: dict[int, deque[Parcel]] = {}
        bulk.join(self)
        if same_host:
            self._offer()

    def _offer(self) -> None:
        """Ask the peer whether it can open this process's memory."""
        arena = self._bulk.arena
        if arena is not None:
            self._control(OFFER, [os.getpid(), arena.probe, arena.name])

    def put(self, data: bytes, frames: Sequence[Frame], keys: Sequence[int], *, now: bool = False) -> None:
        """Send a message after all others with a key in common.

        The keys are the ids of the actors that it is for, or minus the id of what is answered.
        """
        if len(frames) == 1 and not self.waiting and (descriptor := self._describe(frames[0])) is not None:
            self._link.put(data, [memoryview(descriptor)], now=now)
            return
        parcel = Parcel(data, frames, keys, now)
        for index, frame in enumerate(frames):
            descriptor = self._describe(frame)
            if descriptor is not None:
                parcel.frames[index] = memoryview(descriptor)
            elif frame.nbytes >= LARGE:
                self._prepare(parcel, index, frame)
        if not parcel.missing and not (self.waiting and any(key in self.waiting for key in keys)):
            self._send(parcel)
            return
        for key in keys:
            self.waiting.setdefault(key, deque()).append(parcel)

    def control(self, kind: int, value: Any) -> None:
        """A [BULK, kind, value] envelope of the peer."""
        if kind == FREE:
            arena = self._bulk.arena
            for lease in value:
                block = self._lent.pop(lease, None)
                if arena is not None and block is not None:
                    arena.release(block)
            if arena is not None and arena.dropped:
                self._bulk.tell_dropped()
        elif kind == OFFER:
            pid, fd, name = value
            self._control(ACCEPT, self._borrower.accept(pid, fd, name))
        elif kind == ACCEPT:
            self._is_shared = bool(value)
        elif kind == DROP:
            self._borrower.forget(value)
        elif kind == MAKE:
            self._make(*value)
        elif kind == MADE:
            self._making.pop(value)()
        elif kind == RECEIVED:
            self._outflow.acknowledge(*value)
        else:
            raise CodecError(f"an unknown kind of bulk message {kind!r}")

    def chunk(self, data: bytes, frames: Sequence[Frame]) -> None:
        """A chunk from the peer's connection for them."""
        for frame in frames:
            taken = self._inflow.chunk(data, frame)
            if taken is None:
                continue
            ident, count = taken
            read = self._inflow.reader(ident)
            if read is None:
                self._control(RECEIVED, [ident, count])
                continue

            def made(future: Future[bytes], ident: int = ident, count: int = count) -> None:
                if future.exception() is None:
                    self._inflow.replace(ident, future.result())
                if not self._closed:
                    self._control(RECEIVED, [ident, count])

            self._bulk.in_thread(read, done=made)

    def find_frames(self, frames: Sequence[Frame]) -> list[Any]:
        """The frames of a message with what their descriptors name; an error in place of what can't be had.

        `Bulk.give_back` must follow in the same turn of the loop, when the message has been read.
        """
        self._borrower.expect()
        return [frame if memoryview(frame).nbytes >= OUT_OF_BAND else self._read(frame) for frame in frames]

    def find(self, descriptors: Sequence[Any]) -> list[Any]:
        """The same of descriptors that are unpacked already."""
        self._borrower.expect()
        return [self._find(descriptor) for descriptor in descriptors]

    def _make(self, lease: int, segment: int, fd: int, offset: int, size: int) -> None:
        """Make `bytes` of what the peer lends, off the loop; a message that needs them follows."""

        def made(future: Future[bytes]) -> None:
            if not self._closed:
                if future.exception() is None:
                    self._made[lease] = future.result()
                self._control(MADE, lease)

        try:
            loan = self._borrower.borrow(lease, segment, fd, offset, size)
        except CodecError:
            self._control(FREE, [lease])
            self._control(MADE, lease)
        else:
            self._bulk.in_thread(loan.read, done=made)

    def drop(self, segments: list[int]) -> None:
        """Tell the peer to unmap segments."""
        if self._is_shared:
            self._control(DROP, segments)

    def close(self) -> None:
        """The peer is gone: take back what it has borrowed."""
        self._closed = True
        self._bulk.forget(self)
        self.waiting.clear()
        self._making.clear()
        self._made.clear()
        self._outflow.close()
        self._inflow.close()
        self._borrower.close()
        arena = self._bulk.arena
        lent, self._lent = self._lent, {}
        if arena is not None:
            for block in lent.values():
                arena.release(block)

    def _describe(self, frame: Frame) -> bytes | None:
        """A frame's descriptor, if its bytes are where the peer can reach them by the time that it can ask for them."""
        size = frame.nbytes
        bulk = self._bulk
        arena = bulk.arena
        if arena is None:
            return None
        if arena.holds_arrays and (found := _lying_in(arena, frame, size)) is not None:
            block, offset = found
            block.freeze()
            if self._is_shared:
                arena.retain(block)
                return _pack([LOAN, *self._lend(block, offset, size)])
        if not self._is_shared or not LARGE <= size <= INLINE or not bulk.copies_now(size):
            return None
        block = arena.allocate(size)
        if arena.dropped:
            bulk.tell_dropped()
        if block is None:
            return None
        promise = arena.next_promise()
        self._link.copies.append(partial(block.keep, promise, frame))
        return _pack([LOAN, *self._lend(block, block.offset, size), block.mark, promise, current_core()])

    def _prepare(self, parcel: Parcel, index: int, frame: Frame) -> None:
        """Put a descriptor in a frame's place when its bytes are where the peer can reach them."""
        size = frame.nbytes
        arena = self._bulk.arena
        block = arena.allocate(size) if arena is not None and self._is_shared else None
        self._bulk.tell_dropped()
        if arena is None or block is None:
            with contextlib.suppress(OSError):  # without a connection of its own it goes in the message
                self._outflow.submit(
                    frame, _is_bytes(frame), lambda ident: self._ready(parcel, index, _pack([TRANSFER, ident]))
                )
                parcel.transferred += size
                parcel.missing += 1
            return
        parcel.missing += 1

        def copied() -> None:
            if self._closed:
                arena.release(block)
                return
            descriptor = self._lend(block, block.offset, size)
            if size <= INLINE or not _is_bytes(frame):
                self._ready(parcel, index, _pack([LOAN, *descriptor]))
                return
            lease = descriptor[0]
            self._making[lease] = lambda: self._ready(parcel, index, _pack([MADE, lease]))
            self._control(MAKE, descriptor)

        self._bulk.copy(frame, block, copied)

    def _lend(self, block: Block, offset: int, size: int) -> list[int]:
        self._leases += 1
        self._lent[self._leases] = block
        segment = block.segment
        return [self._leases, segment.id, segment.fd, offset, size]

    def _ready(self, parcel: Parcel, index: int, descriptor: bytes) -> None:
        parcel.frames[index] = memoryview(descriptor)
        parcel.missing -= 1
        candidates = [parcel] if any(key in self.waiting for key in parcel.keys) else []
        while candidates:
            first = candidates.pop()
            queues = [self.waiting.get(key) for key in first.keys]
            if first.missing or any(not queue or queue[0] is not first for queue in queues):
                continue
            self._send(first)
            for key in first.keys:
                queue = self.waiting[key]
                queue.popleft()
                if queue:
                    candidates.append(queue[0])
                else:
                    del self.waiting[key]

    def _send(self, parcel: Parcel) -> None:
        self._link.put(parcel.data, parcel.frames, now=parcel.now)
        if parcel.transferred:
            self._outflow.delivered(parcel.transferred)

    def _read(self, frame: Frame) -> Any:
        try:
            descriptor = packing.unpack(bytes(frame), _no_extensions)
        except Exception as error:  # whatever bytes from elsewhere make of msgpack
            return CodecError(f"a malformed descriptor: {type(error).__name__}: {error}")
        return self._find(descriptor)

    def _find(self, descriptor: Any) -> Any:
        kind: Any = None
        rest: list[Any] = []
        try:
            kind, *rest = descriptor
            if kind == LOAN:
                return self._borrower.borrow(*rest)
            if kind == TRANSFER:
                return self._inflow.take(rest[0])
            if kind == MADE and rest[0] in self._made:
                return self._made.pop(rest[0])
        except CodecError as error:
            if kind == LOAN:
                self._control(FREE, [rest[0]])
            return error
        except Exception as error:  # whatever bytes from elsewhere make of the conversions
            return CodecError(f"a malformed descriptor: {type(error).__name__}: {error}")
        return CodecError(f"a descriptor of kind {kind!r} that names nothing here")


def _lying_in(arena: Arena, frame: Frame, size: int) -> tuple[Block, int] | None:
    """The block and the offset in its segment of a buffer that was placed in the arena beforehand."""
    if getattr(frame.obj, "base", None) is None:
        return None  # bytes, or an array that owns its memory
    import numpy as np

    address = int(np.frombuffer(frame, np.uint8).__array_interface__["data"][0])
    block = arena.find(address, size)
    if block is None or block.array is None:
        return None
    return block, address - block.segment.address


def _is_bytes(frame: Frame) -> bool:
    """Whether a frame is to arrive as `bytes`; all others are an array's memory."""
    return not hasattr(frame.obj, "dtype")


def _no_extensions(code: int, data: bytes) -> Any:
    raise CodecError(f"an extension type {code} in a descriptor")
