"""The commands of one model, in the order that its client gave them, whatever order they arrive in."""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tinker_actors.data import Datum
from tinker_actors.gateway.futures import Answer, Future
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.training.contract import ForwardBackwardResult, LossConfig

Action: TypeAlias = Callable[[], Awaitable[Answer]]
"""A command that isn't a pass with gradients: does it, and gives its answer."""

MOST_HELD = 1024
"""Commands that a model may have waiting."""

MOST_TOKENS = 4_000_000
"""Positions of batches that a tenant may have waiting, beyond which only what others wait for is taken; some 200 bytes
each."""

_REMEMBERED = 4096
"""Commands whose repetition is recognised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A forward and backward pass, which models of one base model can take together.

    Attributes:
        datums: The batch.
        loss: The loss.
        answer: Makes the answer of what was found.
    """

    datums: Sequence[Datum]
    loss: LossConfig
    answer: Callable[[ForwardBackwardResult], Awaitable[Answer]]

    @property
    def tokens(self) -> int:
        """Positions of the batch."""
        return sum(map(len, self.datums))


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command.

    Attributes:
        seq_id: Its place among its model's commands.
        future: Where its answer goes.
        work: What is to be done.
        arrived: When it came, by the monotonic clock.
    """

    seq_id: int
    future: Future
    work: Pass | Action
    arrived: float = field(default_factory=time.monotonic)


class CommandLog:
    """One model's commands: each is run once, in the order of their `seq_id`.

    0 makes the model; its client counts from 1.

    One that comes before its predecessor is held until that is there. One that comes again is not run again.
    """

    def __init__(self) -> None:
        self.ready: deque[Command] = deque()
        self._held: dict[int, Command] = {}
        self._known: OrderedDict[int, str] = OrderedDict()
        self._next = 0

    def __len__(self) -> int:
        return len(self.ready) + len(self._held)

    @property
    def tokens(self) -> int:
        """Positions of the batches that wait."""
        waiting = (command.work for command in (*self.ready, *self._held.values()))
        return sum(work.tokens for work in waiting if isinstance(work, Pass))

    def is_due(self, seq_id: int) -> bool:
        """Whether nothing has to come before this one."""
        return seq_id == self._next

    @property
    def next_id(self) -> int:
        """The `seq_id` of a command whose client doesn't number them."""
        return max((self._next, *(held + 1 for held in self._held)))

    @property
    def gap(self) -> tuple[int, float] | None:
        """The `seq_id` that is missing, and the arrival of the first command that waits for it; None if none does."""
        if not self._held:
            return None
        return self._next, min(command.arrived for command in self._held.values())

    def repeated(self, seq_id: int) -> str | None:
        """The request id of a command that was given before; None for a new one.

        Raises:
            RefusalError: It was given so long ago that its request id is forgotten; or too
                many commands wait already.
        """
        if (known := self._known.get(seq_id)) is not None:
            return known
        if seq_id < self._next:
            detail = f"seq_id is {seq_id}; the model's next command is {self._next}"
            raise RefusalError(400, detail, code="seq_id_is_over")
        if len(self) >= MOST_HELD:
            detail = f"the model has {len(self)} commands waiting, and at most {MOST_HELD} may"
            raise RefusalError(429, detail, code="too_many_commands", headers={"Retry-After": "1"})
        return None

    def add(self, command: Command) -> None:
        """Take a new command."""
        self._known[command.seq_id] = command.future.request_id
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        self._held[command.seq_id] = command
        self._release()

    def skip_gap(self) -> list[Command]:
        """Stop waiting for what never came: give what waited for it, which can't be run, and go on after that."""
        lost = [self._held[seq_id] for seq_id in sorted(self._held)]
        self._held.clear()
        if lost:
            self._next = lost[-1].seq_id + 1
        return lost

    def clear(self) -> list[Command]:
        """Take out all commands that aren't run yet."""
        waiting = [*self.ready, *self.skip_gap()]
        self.ready.clear()
        return waiting

    def _release(self) -> None:
        for seq_id in itertools.count(self._next):
            if seq_id not in self._held:
                self._next = seq_id
                return
            self.ready.append(self._held.pop(seq_id))
