"""Which examples each step learns from: a pure function of the seed, the lengths and where it begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tinker_actors.data import derive_seed
from tinker_actors.scheduler.sft_config import BatchSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far the data has been gone through.

    Attributes:
        epoch: Counted from 0.
        position: Examples of the epoch that are behind.
    """

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One optimizer step.

    Attributes:
        batches: The examples of each batch whose gradients are added up.
        epoch: The epoch that they belong to, from 0.
        after: Where the data stands once the step is done.
    """

    batches: tuple[tuple[int, ...], ...]
    epoch: int
    after: Cursor

    @property
    def examples(self) -> tuple[int, ...]:
        """All examples of the step."""
        return tuple(example for batch in self.batches for example in batch)


@dataclass(frozen=True, slots=True)
class DataPlan:
    """The order of the examples in every epoch, and its division into steps, none of which is part of two epochs.

    Attributes:
        lengths: Tokens of each example.
        kept: Which of them are trained.
        batch: How they are put together.
        epochs: How often each is trained.
        seed: Of the order.
        shuffle: Whether the order is drawn; else it is that of `kept`.
    """

    lengths: Sequence[int]
    kept: Sequence[int]
    batch: BatchSection
    epochs: int
    seed: int
    shuffle: bool = True

    def steps(self, start: Cursor) -> Iterator[StepPlan]:
        """The steps from a cursor to the end of the last epoch."""
        position = start.position
        for epoch in range(start.epoch, self.epochs):
            order = self._order(epoch)
            while position < len(order):
                batches: list[tuple[int, ...]] = []
                while len(batches) < self.batch.accumulation and position < len(order):
                    stop = self._end_of_batch(order, position)
                    batches.append(tuple(int(example) for example in order[position:stop]))
                    position = stop
                whole = position == len(order)
                after = Cursor(epoch=epoch + 1) if whole else Cursor(epoch=epoch, position=position)
                yield StepPlan(batches=tuple(batches), epoch=epoch, after=after)
            position = 0

    def count(self, start: Cursor) -> int:
        """How many steps there are from a cursor on."""
        if self.batch.tokens is not None:
            return sum(1 for _ in self.steps(start))
        size = (self.batch.examples or DEFAULT_EXAMPLES) * self.batch.accumulation
        left = [len(self.kept)] * max(self.epochs - start.epoch, 0)
        if left:
            left[0] -= start.position
        return sum(-(-count // size) for count in left)

    def _order(self, epoch: int) -> Sequence[int]:
        if not self.shuffle:
            return self.kept
        draw = np.random.Generator(np.random.PCG64(derive_seed(self.seed, "epoch", epoch)))
        return draw.permutation(np.asarray(self.kept)).tolist()

    def _end_of_batch(self, order: Sequence[int], start: int) -> int:
        if self.batch.tokens is None:
            return min(start + (self.batch.examples or DEFAULT_EXAMPLES), len(order))
        stop, tokens = start + 1, self.lengths[order[start]]
        while stop < len(order) and tokens + self.lengths[order[stop]] <= self.batch.tokens:
            tokens += self.lengths[order[stop]]
            stop += 1
        return stop


DEFAULT_EXAMPLES = 16
"""Examples of a batch where neither examples nor tokens are given."""


def held_out(count: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Which of `count` examples are trained and which are held out, each in order; drawn by the seed.

    At least one is held out and at least one is trained, where there are two and `share` isn't 0.
    """
    if not share:
        return list(range(count)), []
    wanted = min(max(round(count * share), 1), count - 1)
    draw = np.random.Generator(np.random.PCG64(derive_seed(seed, "holdout")))
    out = set(draw.permutation(count)[:wanted].tolist())
    return [example for example in range(count) if example not in out], sorted(out)
