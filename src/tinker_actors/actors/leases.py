"""What this process reads in a peer's shared memory: mapped where it is, and given back when it is collected.

Arrays see the peer's memory read-only. Tensors, which can't be read-only, see a copy-on-write mapping of it: what a
receiver writes is its own. Memory that is mapped outlives the process that it came from.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinker_actors.actors.errors import CodecError

if TYPE_CHECKING:
    import asyncio

_F_GET_SEALS = 1034
_FIXED_SIZE = 0x2 | 0x4  # F_SEAL_SHRINK, F_SEAL_GROW: without them a peer could make reading fault
SEGMENTS = 4096  # mappings of one peer at most


class Mapping:
    """One of a peer's segments, mapped read-only. `fd` stays open for copy-on-write mappings."""

    __slots__ = ("__weakref__", "_byte", "_read", "fd", "marks", "memory", "size")

    def __init__(self, pid: int, fd: int, name: str) -> None:
        import numpy as np

        self._read: Any = np.frombuffer
        self._byte = np.dtype(np.uint8)
        self.fd = _open(pid, fd, name)
        try:
            self.size = os.fstat(self.fd).st_size
            if fcntl.fcntl(self.fd, _F_GET_SEALS) & _FIXED_SIZE != _FIXED_SIZE:
                raise CodecError("a peer's shared memory is not sealed")
            self.memory = mmap.mmap(self.fd, self.size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
            self.marks = memoryview(self.memory)[: self.size & ~7].cast("q")
        except BaseException:  # whatever it was, the descriptor is not leaked
            os.close(self.fd)
            raise
        weakref.finalize(self, os.close, self.fd).atexit = False

    def root(self, offset: int, size: int, memory: mmap.mmap | None = None) -> Any:
        """A part of it, or of another mapping of it, as an array of bytes that all its views keep alive."""
        return self._read(self.memory if memory is None else memory, self._byte, size, offset)


class Mark:
    """Says whether what its owner promised to write is whole.

    Attributes:
        core: on which the owner writes it.
    """

    __slots__ = ("_marks", "_place", "_promise", "core")

    def __init__(self, marks: memoryview, place: int, promise: int, core: int) -> None:
        self._marks = marks
        self._place = place
        self._promise = promise
        self.core = core

    @property
    def is_set(self) -> bool:
        """Whether the owner is done, in one way or the other."""
        return abs(self._marks[self._place]) == self._promise

    @property
    def is_broken(self) -> bool:
        """Whether the owner could not write it."""
        return self._marks[self._place] == -self._promise


class Loan:
    """A lease's bytes. They are given back when this and every buffer made here has been collected.

    Attributes:
        root: the peer's memory, read-only.
        mark: what to wait for before it is read.
    """

    __slots__ = ("_borrower", "_lease", "_mapping", "_offset", "mark", "nbytes", "root")

    def __init__(self, borrower: Borrower, mapping: Mapping, lease: int, offset: int, size: int, root: Any) -> None:
        self.mark: Mark | None = None
        self._borrower = borrower
        self._mapping = mapping
        self._lease = lease
        self._offset = offset
        self.nbytes = size
        self.root = root

    def shared(self) -> memoryview:
        """The peer's memory."""
        return memoryview(self.root)

    def private(self) -> memoryview:
        """The same bytes, writable: pages that are written become this process's own."""
        page = self._offset % mmap.ALLOCATIONGRANULARITY
        memory = mmap.mmap(
            self._mapping.fd,
            self.nbytes + page,
            flags=mmap.MAP_PRIVATE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
            offset=self._offset - page,
        )
        root = self._mapping.root(page, self.nbytes, memory)
        self._borrower.hold(self._lease, root)
        return memoryview(root)

    def read(self) -> bytes:
        """A copy. It may be made in a thread, and leaves the interpreter's lock free."""
        return read(self._mapping.fd, self.nbytes, self._offset)


class _Holder(weakref.ref[Any]):
    """Memory of a lease. It is kept in the list of all that the lease has, and leaves it when it is collected."""

    __slots__ = ("lease",)

    lease: int


class Borrower:
    """All that one incarnation of a peer has lent.

    Args:
        loop: whose thread gives back.
        give_back: gets the leases that nobody here reads any more.
        returning: where this puts itself when there are such; whoever takes it out calls `give_back`, as the loop
            will in a turn of its own.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        give_back: Callable[[list[int]], None],
        returning: deque[Borrower] | None = None,
    ) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._send = give_back
        self._returning: deque[Borrower] = deque(maxlen=0) if returning is None else returning
        self._holders: dict[int, list[_Holder]] = {}
        self._pid = 0
        self._name = ""
        self._mappings: dict[int, Mapping] = {}
        self._returned: deque[int] = deque()
        self._waking = False
        self._closed = False

    def accept(self, pid: int, fd: int, name: str) -> bool:
        """Whether the memory of a peer that offers it can be opened from here."""
        try:
            os.close(_open(pid, fd, f"{name}-probe"))
        except (OSError, CodecError):
            return False
        self._pid, self._name = pid, name
        return True

    def borrow(self, lease: int, segment: int, fd: int, offset: int, size: int, *promise: int) -> Loan:
        """The bytes that a peer's descriptor names, and the mark of its promise to write them: place, number, core.

        Raises:
            CodecError: they can't be reached.
        """
        if self._closed:
            raise CodecError("its sender's memory is gone")
        mapping = self._mappings.get(segment)
        if mapping is None:
            if not self._pid or len(self._mappings) >= SEGMENTS:
                raise CodecError("a peer lends memory that it has not offered")
            try:
                mapping = Mapping(self._pid, fd, f"{self._name}-{segment}")
            except OSError as error:
                raise CodecError(f"its sender's memory can't be opened: {error}") from error
            self._mappings[segment] = mapping
        if size < 1 or offset < 0 or offset + size > mapping.size:
            raise CodecError(f"a peer lends bytes {offset} to {offset + size} of {mapping.size}")
        root = mapping.root(offset, size)
        self.hold(lease, root)
        loan = Loan(self, mapping, lease, offset, size, root)
        if promise:
            place, number, core = promise
            if not 0 <= place < len(mapping.marks) or number < 1:
                raise CodecError(f"a peer promises data {number} by mark {place} of {len(mapping.marks)}")
            loan.mark = Mark(mapping.marks, place, number, core)
        return loan

    def hold(self, lease: int, root: Any) -> None:
        """Keep a lease as long as any view of `root` is alive."""
        holder = _Holder(root, self._let_go)
        holder.lease = lease
        others = self._holders.get(lease)
        if others is None:
            self._holders[lease] = [holder]
        else:
            others.append(holder)

    def forget(self, segments: list[int]) -> None:
        """The peer has given these segments back to the system."""
        for segment in segments:
            self._mappings.pop(segment, None)

    def close(self) -> None:
        """The peer is gone: nobody to give anything back to. What is being read stays."""
        self._closed = True
        self._mappings.clear()
        self._holders.clear()

    def _let_go(self, holder: _Holder) -> None:
        """Called by the collector, in whatever thread it runs."""
        holders = self._holders.get(holder.lease)
        if holders is None:
            return  # this is closed
        holders.remove(holder)
        if holders:
            return
        self._holders.pop(holder.lease, None)
        self._returned.append(holder.lease)
        if not self._waking:
            self._waking = True
            self._returning.append(self)
            here = threading.get_ident() == self._thread
            with contextlib.suppress(RuntimeError):  # the loop is closed
                (self._loop.call_soon if here else self._loop.call_soon_threadsafe)(self.give_back)

    def expect(self) -> None:
        """Somebody calls `give_back` in this very turn of the loop."""
        if not self._waking:
            self._waking = True
            self._returning.append(self)

    def give_back(self) -> None:
        """Send what was returned by now."""
        self._waking = False  # first: what is returned from here on asks for another turn
        returned = self._returned
        leases: list[int] = []
        while returned:  # any thread may add to it, this one alone takes from it
            leases.append(returned.popleft())
        if leases and not self._closed:
            self._send(leases)


def read(fd: int, size: int, offset: int) -> bytes:
    """Bytes of a file, all of them; without the interpreter's lock."""
    data = os.pread(fd, size, offset)
    return data if len(data) == size else data + read(fd, size - len(data), offset + len(data))


def _open(pid: int, fd: int, name: str) -> int:
    """Another process's memfd, if it is the one of that name: a process id and a number may mean others by now."""
    own = os.open(f"/proc/{int(pid)}/fd/{int(fd)}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if os.readlink(f"/proc/self/fd/{own}") != f"/memfd:{name} (deleted)":
        os.close(own)
        raise CodecError(f"descriptor {fd} of process {pid} is not {name}")
    return own
