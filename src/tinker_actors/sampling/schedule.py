"""Who computes in the next step: running samples first, then prompts, within a budget of tokens."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinker_actors.sampling.fair_queue import FairQueue
from tinker_actors.sampling.lodging import Lodging
from tinker_actors.sampling.memory import Memory
from tinker_actors.sampling.metrics import Meter
from tinker_actors.sampling.prefixes import Stretch
from tinker_actors.sampling.rows import Row

if TYPE_CHECKING:
    from tinker_actors.sampling.residents import Resident


@dataclass(frozen=True, slots=True)
class Work:
    """So many pending tokens of a row."""

    row: Row
    count: int

    @property
    def draws(self) -> bool:
        """Whether the row's next token can be drawn afterwards."""
        return self.count == self.row.pending


class Schedule:
    """Rows that wait and rows that have a place. Belongs to the engine's thread; the queue is under the engine's lock.

    A row that is out of memory takes it from finished sequences, then from the running row of the lowest priority that
    came last; that one waits again and computes what it had anew, which gives the same bits.

    Args:
        memory: The places.
        lodging: Which adapters are in the network.
        meter: Counts.
        max_rows: Samples that have a place at once.
        max_tokens: Tokens that a step computes, unless more samples draw.
    """

    def __init__(
        self, memory: Memory, lodging: Lodging[Resident], meter: Meter, *, max_rows: int, max_tokens: int
    ) -> None:
        self.memory, self._lodging = memory, lodging
        self.queue: FairQueue[Row] = FairQueue()
        self.running: list[Row] = []
        self._meter, self._max_rows, self._max_tokens = meter, max_rows, max_tokens
        self._number = 0
        self._leaders: dict[object, Row] = {}
        self._parked: dict[Resident, list[Row]] = {}  # until their adapter is in the network

    @property
    def waiting(self) -> list[Row]:
        """Rows without a place."""
        return [*self.queue, *(row for rows in self._parked.values() for row in rows)]

    @property
    def waiting_count(self) -> int:
        """How many rows have no place."""
        return len(self.queue) + sum(map(len, self._parked.values()))

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do before somebody asks for more."""
        return not (self.running or len(self.queue) or self._lodging.waits)

    @property
    def placed(self) -> int:
        """Samples that have a place or follow one that has."""
        return len(self.running) + sum(len(row.followers) for row in self.running)

    def add(self, rows: Iterable[Row]) -> None:
        """Let rows wait."""
        for row in rows:
            self.queue.push(row, priority=row.ticket.request.priority, lane=row.ticket.lane)

    def drop_closed(self) -> None:
        """Forget rows that nobody waits for."""
        for row in self.running:
            row.followers = [follower for follower in row.followers if not follower.ticket.closed]
        for row in [row for row in self.running if row.ticket.closed]:
            self.release(row)
        self.queue.drop(lambda row: row.ticket.closed)
        for resident, rows in list(self._parked.items()):
            rows[:] = [row for row in rows if not row.ticket.closed]
            if not rows:
                del self._parked[resident]
                self._lodging.forgo(resident)

    def settle(self) -> list[tuple[list[Row], Exception]]:
        """Let rows go on whose adapters have got into the network; those whose adapters can't, and why."""
        ready, failed = self._lodging.settle(self._using)
        for resident in ready:
            for row in reversed(self._parked.pop(resident, [])):
                self._back(row)
        return [(self._parked.pop(resident, []), error) for resident, error in failed]

    def plan(self) -> list[Work]:
        """What the next step computes; nothing if nothing can."""
        drawing = [row for row in self.running if row.pending == 1]
        preempted = self._meter.preempted
        works = [Work(row, 1) for row in sorted(drawing, key=_rank) if row.stretch is not None and self._grows(row)]
        numbers = {id(row): row.number for row in self.running}
        budget = max(1, self._max_tokens - len(works))
        if preempted == self._meter.preempted:  # else the places just taken would be given out again
            self._admit(budget)
        planned = {id(work.row) for work in works}
        for row in sorted((row for row in self.running if id(row) not in planned), key=_rank):
            if budget <= 0:
                break
            count = row.pending if row.images else min(row.pending, budget)
            if row.stretch is not None and self._grows(row):
                works.append(Work(row, count))
                budget -= count
        # one may have lost its place to a later one, and even have got another
        return [
            work
            for work in works
            if work.row.stretch is not None and numbers.get(id(work.row), work.row.number) == work.row.number
        ]

    def release(self, row: Row, *, broken: bool = False) -> None:
        """A row is done, or not wanted any more."""
        if row in self.running:
            self.running.remove(row)
        self._forget_leader(row)
        if row.stretch is not None:
            self.memory.end(row.stretch, broken=broken)
            row.stretch = None
        for follower in row.followers:
            self._back(follower)
        row.followers = []

    def fork(self, row: Row) -> list[Row]:
        """Give the followers of a row whose prompt is computed places of their own; those that got one."""
        self._forget_leader(row)
        followers, row.followers = row.followers, []
        placed: list[Row] = []
        for follower in followers:
            if row.stretch is not None:
                follower.stretch = self.memory.fork(row.stretch, follower.sequence, expected=follower.limit)
            if follower.stretch is None:
                self._back(follower)
            else:
                self._start(follower)
                follower.positions = row.positions
                placed.append(follower)
        return placed

    def _admit(self, budget: int) -> None:
        while self.placed < self._max_rows:
            row = self.queue.peek()
            if row is None:
                return
            if row.ticket.closed:
                self.queue.pop(0)
                continue
            if not self._lodging.ready(row.ticket.resident):
                self._parked.setdefault(row.ticket.resident, []).append(self.queue.pop(0))
                continue
            leader = self._leaders.get(_prompt(row)) if not row.drawn and row.ticket.scores is None else None
            if leader is not None and leader.stretch is not None:
                self.queue.pop(row.limit)
                self._counted(row, len(row.sequence) if row.ticket.cached == 0 else 0)
                leader.followers.append(row)
                continue
            if budget <= 0:
                return
            row.stretch = self._begin(row)
            if row.stretch is None:
                if not self._preempt_below(row):
                    return
                continue
            self.queue.pop(row.pending + row.limit)
            self._counted(row, row.stretch.held)
            self._start(row)
            budget -= row.pending
            if not row.drawn and row.ticket.scores is None and row.pending > 0:
                self._leaders.setdefault(_prompt(row), row)

    def _begin(self, row: Row) -> Stretch | None:
        scores = row.ticket.scores
        return self.memory.begin(
            row.ticket.resident,
            row.sequence,
            row.images,
            expected=row.limit - row.drawn,
            reuse=len(row.sequence) if scores is None else scores.next,
        )

    def _counted(self, row: Row, cached: int) -> None:
        ticket = row.ticket
        if not ticket.begun:
            ticket.begun = True
            ticket.cached = min(cached, row.given)
            self._meter.queued(ticket.resident.handle, time.perf_counter() - ticket.arrived)
        if not row.drawn:
            self._meter.cached += cached

    def _start(self, row: Row) -> None:
        self._number += 1
        row.number = self._number
        self.running.append(row)
        self._lodging.use(row.ticket.resident)

    def _using(self, expected: Collection[Resident]) -> set[Resident]:
        used = {row.ticket.resident for row in self.running}
        if not used.issuperset(expected):
            used.update({row.ticket.resident for row in self.queue if not row.ticket.closed}.intersection(expected))
        return used

    def _grows(self, row: Row) -> bool:
        """Whether there is room for all of a row's tokens; others may lose theirs for it."""
        assert row.stretch is not None
        while not self.memory.room(row.stretch, len(row.sequence)):
            victim = max(self.running, key=_rank)
            self._preempt(victim)
            if victim is row:
                return False
        return True

    def _preempt_below(self, row: Row) -> bool:
        """Take the place of a running row of lower priority; False if there is none."""
        lower = [other for other in self.running if other.ticket.request.priority < row.ticket.request.priority]
        if not lower:
            return False
        self._preempt(max(lower, key=_rank))
        return True

    def _preempt(self, row: Row) -> None:
        assert row.stretch is not None
        self._meter.preempted += 1
        self.running.remove(row)
        self._forget_leader(row)
        self.memory.drop(row.stretch)
        row.stretch = None
        followers, row.followers = row.followers, []
        for follower in reversed(followers):
            self._back(follower)
        self._back(row)

    def _back(self, row: Row) -> None:
        self.queue.push(row, priority=row.ticket.request.priority, lane=row.ticket.lane, first=True)

    def _forget_leader(self, row: Row) -> None:
        key = _prompt(row)
        if self._leaders.get(key) is row:
            del self._leaders[key]


def _rank(row: Row) -> tuple[int, int]:
    """Rows in the order in which they may keep their places."""
    return -row.ticket.request.priority, row.number


def _prompt(row: Row) -> object:
    request = row.ticket.request
    return id(row.ticket.resident), request.prompt, request.images
