"""Which adapters have a place in the network: so many at once, and the longest unused gives way.

An adapter that is served and has no place lies in host memory, as long as its budget lasts, or in the store, from where
it is read beside the running batch. One that a running sample uses stays where it is: where all places are of such,
the one that gives way takes no new samples until those that run have ended.
"""

from __future__ import annotations

import queue
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tinker_actors.errors import ModelError
from tinker_actors.models.adapters import Adapter
from tinker_actors.models.lent import LentWeights


class Places(Protocol):
    """Where adapters are placed: a network."""

    def place(self, adapter: Adapter) -> int:
        """Install an adapter and return its slot."""
        ...

    def unload(self, slot: int) -> None:
        """Free a slot."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class Lodger:
    """What is lodged.

    Attributes:
        slot: Its place in the network; None while it has none.
        lent: Weights of a trainer in this process that it runs on, if any; held so that they stay as they are.
        size: Bytes of its weights in the network; 0 while they aren't there.
    """

    slot: int | None
    lent: LentWeights | None = None
    size: int = 0


L = TypeVar("L", bound=Lodger)


@dataclass(frozen=True, slots=True, kw_only=True)
class LodgingCounts:
    """What became of the adapters. The last two only grow.

    Attributes:
        placed: Adapters that have a place now.
        in_network: Bytes of their weights.
        in_host_memory: Bytes of copies in host memory.
        evicted: How often one gave way.
        read: How often one was read again from the store.
    """

    placed: int
    in_network: int
    in_host_memory: int
    evicted: int
    read: int


@dataclass(slots=True, eq=False)
class _Copies:
    """Adapters in host memory, the longest unused first."""

    budget: int
    size: int = 0
    held: OrderedDict[Lodger, Adapter] = field(default_factory=OrderedDict[Lodger, Adapter])

    def keep(self, lodger: Lodger, adapter: Adapter) -> None:
        """Keep one as far as the budget lets it; others go for it."""
        self.drop(lodger)
        self.held[lodger] = adapter
        self.size += bytes_of(adapter)
        while self.size > self.budget and self.held:
            self.drop(next(iter(self.held)))

    def find(self, lodger: Lodger) -> Adapter | None:
        """A copy, if it is here."""
        if lodger in self.held:
            self.held.move_to_end(lodger)
        return self.held.get(lodger)

    def drop(self, lodger: Lodger) -> None:
        """Forget one."""
        if (adapter := self.held.pop(lodger, None)) is not None:
            self.size -= bytes_of(adapter)


class Lodging(Generic[L]):
    """Places for adapters. Used by the thread that computes, between two steps; `read` runs in a thread of its own.

    Attributes:
        wake: Called from that thread when an adapter was read.

    Args:
        network: Where they are placed.
        read: Reads the adapter of a lodger from the store.
        most: Adapters that have a place at once; None for no limit.
        host_memory: Bytes for copies of adapters. Nothing is copied where there is no limit.
    """

    def __init__(self, network: Places, read: Callable[[L], Adapter], *, most: int | None, host_memory: int) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._network, self._read, self._most = network, read, most
        self._copies = _Copies(host_memory if most is not None else 0)
        self._placed: OrderedDict[L, None] = OrderedDict()  # the longest unused first
        self._leaving: dict[L, None] = {}
        self._unused: set[L] = set()  # placed for somebody who hasn't come yet
        self._wanted: OrderedDict[L, Adapter | None] = OrderedDict()
        self._reading: set[L] = set()
        self._arrived: queue.SimpleQueue[tuple[L, Adapter | Exception]] = queue.SimpleQueue()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="sampler-adapters")
        self._evicted = self._reads = self._bytes = 0

    @property
    def waits(self) -> bool:
        """Whether `settle` has something to do once nothing runs."""
        return not self._arrived.empty() or any(
            adapter is not None or lodger.slot is not None for lodger, adapter in self._wanted.items()
        )

    def counts(self) -> LodgingCounts:
        """How it stands; from any thread."""
        return LodgingCounts(
            placed=len(self._placed),
            in_network=self._bytes,
            in_host_memory=self._copies.size,
            evicted=self._evicted,
            read=self._reads,
        )

    def copied(self, lodger: L) -> int:
        """Bytes of an adapter's copy in host memory; from any thread."""
        adapter = self._copies.held.get(lodger)
        return 0 if adapter is None else bytes_of(adapter)

    def add(self, lodger: L, adapter: Adapter | None) -> None:
        """Take in an adapter as it was read, or None if it is to be read when it is asked for.

        Raises:
            ModelError: It does not fit the base.
        """
        if adapter is not None and not self._full:
            self._place(lodger, adapter)
        elif adapter is not None:
            self._copies.keep(lodger, adapter)

    def remove(self, lodger: L) -> None:
        """Forget an adapter that nobody uses."""
        self._unplace(lodger)
        self._wanted.pop(lodger, None)
        self._copies.drop(lodger)

    def ready(self, lodger: L) -> bool:
        """Whether a sample may begin on it now. If not, it is on its way: `settle` tells."""
        if lodger.slot is not None and lodger not in self._leaving:
            return True
        if lodger not in self._wanted:
            self._wanted[lodger] = self._copy_of(lodger)
            if lodger.slot is None and self._wanted[lodger] is None and lodger not in self._reading:
                self._reading.add(lodger)
                self._reader.submit(self._fetch, lodger)
        return False

    def use(self, lodger: L) -> None:
        """A sample begins on it."""
        self._unused.discard(lodger)
        if lodger in self._placed:
            self._placed.move_to_end(lodger)

    def forgo(self, lodger: L) -> None:
        """Nobody waits for it any more."""
        self._wanted.pop(lodger, None)

    def settle(self, using: Callable[[Collection[L]], set[L]]) -> tuple[list[L], list[tuple[L, Exception]]]:
        """Place what has arrived, as far as others can give way.

        Args:
            using: Those that running samples use; and those, among the ones given, that waiting samples are of.

        Returns:
            Those that samples may begin on from now on, and those that can't be read, with the reason.
        """
        failed = self._take_arrived()
        used = using(self._unused)
        ready: list[L] = []
        for lodger, adapter in list(self._wanted.items()):
            if adapter is None or lodger.slot is not None:
                continue
            if self._full and not self._give_way(used):
                break
            del self._wanted[lodger]
            try:
                self._place(lodger, adapter)
            except ModelError as error:
                failed.append((lodger, error))
                continue
            self._unused.add(lodger)
            used.add(lodger)
            ready.append(lodger)
        return ready + self._choose_leaving(), failed

    def close(self) -> None:
        """Read nothing any more."""
        self._reader.shutdown(wait=True, cancel_futures=True)

    @property
    def _full(self) -> bool:
        return self._most is not None and len(self._placed) >= self._most

    def _take_arrived(self) -> list[tuple[L, Exception]]:
        failed: list[tuple[L, Exception]] = []
        while not self._arrived.empty():
            lodger, answer = self._arrived.get()
            self._reading.discard(lodger)
            if lodger not in self._wanted:
                continue
            if isinstance(answer, Exception):
                del self._wanted[lodger]
                failed.append((lodger, answer))
            else:
                self._reads += 1
                self._wanted[lodger] = answer
        return failed

    def _give_way(self, used: set[L]) -> bool:
        """Evict one that nobody uses, if there is one."""
        for lodger in [*self._leaving, *self._placed]:
            if lodger not in used:
                self._evict(lodger)
                return True
        return False

    def _choose_leaving(self) -> list[L]:
        """As many of the placed ones take no new samples as others wait for places; those that do so again."""
        lacking = sum(adapter is not None and lodger.slot is None for lodger, adapter in self._wanted.items())
        for lodger in self._placed:
            if len(self._leaving) >= lacking:
                break
            if lodger not in self._unused:
                self._leaving[lodger] = None
        back: list[L] = []
        while len(self._leaving) > lacking:
            lodger, _ = self._leaving.popitem()
            if lodger in self._wanted:
                del self._wanted[lodger]
                back.append(lodger)
        return back

    def _fetch(self, lodger: L) -> None:
        try:
            answer: Adapter | Exception = self._read(lodger)
        except Exception as error:  # told to whoever asks for the adapter, whatever it is
            answer = error
        self._arrived.put((lodger, answer))
        self.wake()

    def _copy_of(self, lodger: L) -> Adapter | None:
        return lodger.lent.adapter if lodger.lent is not None else self._copies.find(lodger)

    def _place(self, lodger: L, adapter: Adapter) -> None:
        lodger.slot = self._network.place(adapter)
        lodger.size = bytes_of(adapter)
        self._bytes += lodger.size
        self._placed[lodger] = None
        if self._most is not None and lodger.lent is None:
            self._copies.keep(lodger, adapter)

    def _evict(self, lodger: L) -> None:
        self._unplace(lodger)
        self._evicted += 1
        if lodger in self._wanted:  # it gave way, and samples of it came meanwhile
            del self._wanted[lodger]
            self.ready(lodger)

    def _unplace(self, lodger: L) -> None:
        if lodger in self._placed:
            assert lodger.slot is not None
            self._network.unload(lodger.slot)
            del self._placed[lodger]
            self._bytes -= lodger.size
            lodger.slot, lodger.size = None, 0
        self._leaving.pop(lodger, None)
        self._unused.discard(lodger)


def bytes_of(adapter: Adapter) -> int:
    """Memory of an adapter's weights."""
    return sum(part.a.nbytes + part.b.nbytes for part in adapter.weights.values())
