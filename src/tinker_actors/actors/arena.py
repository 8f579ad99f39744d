"""Shared memory of one process, from which its large data reaches the other processes of its host without a socket.

The memory is anonymous files (memfd): they have no name in any file system, so nothing is left when processes are
killed. A peer opens them through /proc/<pid>/fd and can only read them: they are sealed against new writers and
against resizing. Fresh pages cost eight times as much as warm ones, so blocks come in size classes and are used
again, the last one freed first. After the blocks of a segment stands a mark of eight bytes for each, which says that
what was promised to be written there is whole (see `late_data.py`).
"""

from __future__ import annotations

import bisect
import contextlib
import fcntl
import itertools
import mmap
import os
import secrets
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    import numpy as np

LIMIT = 1 << 30  # bytes of an arena unless the mesh says otherwise
SMALLEST = 65_536  # bytes of the smallest block
SEGMENT = 32 << 20  # bytes of the segments that hold several blocks
BLOCKS = 32  # blocks of one segment at most
MARKS = 4096  # bytes of a segment's marks
_SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_SEAL_FUTURE_WRITE = 0x10
_F_ADD_SEALS = 1033


def available() -> bool:
    """Whether this system has what an arena needs."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


def size_class(size: int) -> int:
    """The block size for `size` bytes: the next power of two, or three quarters of it."""
    whole = max(SMALLEST, 1 << (size - 1).bit_length())
    return whole * 3 // 4 if size <= whole * 3 // 4 and whole > SMALLEST else whole


class Block:
    """A part of a segment. It is in use while it has holders: an array of this process, or the leases of peers.

    Attributes:
        segment: where it is.
        index: its place among the segment's blocks.
        offset: bytes from the segment's begin.
        holders: how many hold it.
        array: the array that `Arena.array` gave out.
    """

    __slots__ = ("array", "holders", "index", "offset", "segment")

    def __init__(self, segment: Segment, index: int) -> None:
        self.segment = segment
        self.index = index
        self.offset = index * segment.block_size
        self.holders = 0
        self.array: weakref.ref[np.ndarray[Any, Any]] | None = None

    def root(self, size: int) -> np.ndarray[Any, Any]:
        """The first `size` bytes, as an array whose views all keep this very object alive."""
        import numpy as np

        return np.frombuffer(self.segment.memory, np.uint8, size, self.offset)

    @property
    def mark(self) -> int:
        """Where its mark is, in eights of bytes from the segment's begin."""
        return (self.segment.size >> 3) + self.index

    def keep(self, promise: int, data: memoryview) -> None:
        """Copy bytes to its begin, and mark them with a promise's number: negative if they could not be copied."""
        mark = -promise
        try:
            self.segment.view[self.offset : self.offset + len(data)] = data
            mark = promise
        finally:
            self.segment.marks[self.index] = mark

    def freeze(self) -> None:
        """Make the array that was given out read-only: others are about to read it."""
        array = self.array and self.array()
        if array is not None:
            array.flags.writeable = False


class Segment:
    """One memfd, cut into blocks of one size, with the blocks' marks at its end.

    Attributes:
        size: bytes of all blocks.
    """

    __slots__ = ("address", "block_size", "blocks", "fd", "id", "marks", "memory", "size", "used", "view")

    def __init__(self, name: str, ident: int, block_size: int) -> None:
        import numpy as np

        count = max(1, min(BLOCKS, SEGMENT // block_size))
        self.id = ident
        self.block_size = block_size
        self.size = block_size * count
        self.fd = os.memfd_create(f"{name}-{ident}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, self.size + MARKS)
            self.memory = mmap.mmap(self.fd, self.size + MARKS)
            fcntl.fcntl(self.fd, _F_ADD_SEALS, _SEAL_FUTURE_WRITE)
            fcntl.fcntl(self.fd, _F_ADD_SEALS, _SEALS)
        except BaseException:  # whatever it was, the descriptor is not leaked
            os.close(self.fd)
            raise
        self.view = memoryview(self.memory)
        self.marks = self.view[self.size :].cast("q")
        self.address = int(np.frombuffer(self.memory, np.uint8).__array_interface__["data"][0])
        self.blocks = [Block(self, index) for index in range(count)]
        self.used = 0


class Arena:
    """All segments of this process, at most `limit` bytes. To be used from the loop's thread only.

    Attributes:
        name: how the names of its memfds begin; random, so that a peer recognises them.
        probe: an empty memfd by which a peer finds out whether it can open the others.
        size: bytes of all segments.
        holds_arrays: whether `array` ever gave one out.
        dropped: ids of segments given back to the system, for the peers; whoever tells them clears it.
        next_promise: a number that no block has been marked with.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self.limit = limit
        self.name = f"tinker-actors-{secrets.token_hex(8)}"
        self.probe = os.memfd_create(f"{self.name}-probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.size = 0
        self.holds_arrays = False
        self.dropped: list[int] = []
        self.next_promise = itertools.count(1).__next__
        self._made = 0
        self._segments: dict[int, Segment] = {}
        self._free: dict[int, list[Block]] = {}
        self._addresses: list[tuple[int, int]] = []  # (address, id), sorted
        self._unheld: deque[Block] = deque()  # blocks whose arrays were collected, in whatever thread

    def close(self) -> None:
        """Give everything back; what is still mapped stays readable until it is collected."""
        if self.probe >= 0:
            os.close(self.probe)
            self.probe = -1
        for segment in list(self._segments.values()):
            self._drop(segment)

    @property
    def used(self) -> int:
        """Bytes of the blocks in use."""
        self._sweep()
        return sum(segment.used * segment.block_size for segment in self._segments.values())

    @property
    def is_empty(self) -> bool:
        """Whether there are no segments."""
        return not self._segments

    def allocate(self, size: int) -> Block | None:
        """A block of at least `size` bytes with one holder, or None if the limit or the system allows no more."""
        if self._unheld:
            self._sweep()
        wanted = size_class(size)
        free = self._free.get(wanted)
        if not free:
            segment = self._grow(wanted)
            if segment is None:
                return None
            free = self._free.setdefault(wanted, [])
            free.extend(reversed(segment.blocks))
        block = free.pop()
        block.holders = 1
        block.segment.used += 1
        return block

    def retain(self, block: Block) -> None:
        """One holder more."""
        block.holders += 1

    def release(self, block: Block) -> None:
        """One holder less; without any, the block is free for what comes next."""
        block.holders -= 1
        segment = block.segment
        if block.holders or self._segments.get(segment.id) is not segment:
            return
        block.array = None
        segment.used -= 1
        self._free.setdefault(segment.block_size, []).append(block)
        if not segment.used and self.size > self.limit // 2 and self._idle() > self.limit // 2:
            self._drop(segment)

    def array(self, shape: Any, dtype: Any) -> np.ndarray[Any, Any] | None:
        """A new array in the arena, which holds its block until it and all its views are collected; None if full."""
        import numpy as np

        kind = np.dtype(dtype)
        sides = (shape,) if isinstance(shape, int) else tuple(int(side) for side in shape)
        size = kind.itemsize
        for side in sides:
            size *= side
        block = self.allocate(size) if size else None
        if block is None:
            return None
        root = block.root(size)
        self.hold(block, root)
        array = root.view(kind).reshape(sides)
        block.array = weakref.ref(array)
        self.holds_arrays = True
        return array

    def hold(self, block: Block, root: np.ndarray[Any, Any]) -> None:
        """Let `root` be the holder that `allocate` counted."""
        weakref.finalize(root, self._unheld.append, block).atexit = False

    def find(self, address: int, size: int) -> Block | None:
        """The block that contains these bytes of memory, if one does."""
        index = bisect.bisect_right(self._addresses, (address, 1 << 62)) - 1
        if index < 0:
            return None
        start, ident = self._addresses[index]
        segment = self._segments[ident]
        position = (address - start) // segment.block_size
        if position >= len(segment.blocks):
            return None
        block = segment.blocks[position]
        inside = address - start - block.offset + size <= segment.block_size
        return block if inside and block.holders else None

    def _sweep(self) -> None:
        while self._unheld:
            self.release(self._unheld.popleft())

    def _idle(self) -> int:
        return sum(segment.size for segment in self._segments.values() if not segment.used)

    def _grow(self, block_size: int) -> Segment | None:
        size = block_size * max(1, min(BLOCKS, SEGMENT // block_size))
        if size > self.limit or self.probe < 0:
            return None
        for segment in [segment for segment in self._segments.values() if not segment.used]:
            if self.size + size <= self.limit:
                break
            self._drop(segment)
        if self.size + size > self.limit:
            return None
        self._made += 1
        try:
            segment = Segment(self.name, self._made, block_size)
        except OSError:  # no descriptors or no memory left: the data goes another way
            return None
        self._segments[segment.id] = segment
        bisect.insort(self._addresses, (segment.address, segment.id))
        self.size += segment.size
        return segment

    def _drop(self, segment: Segment) -> None:
        del self._segments[segment.id]
        self._addresses.remove((segment.address, segment.id))
        free = self._free.get(segment.block_size, [])
        self._free[segment.block_size] = [block for block in free if block.segment is not segment]
        self.size -= segment.size
        self.dropped.append(segment.id)
        with contextlib.suppress(OSError):
            os.close(segment.fd)
