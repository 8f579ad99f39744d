"""What a trainer counts and times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tinker_actors.data import Datum

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStats:
    """What a trainer has done since it started, and how it stands. Counts only grow.

    Attributes:
        policies: Policies in training now.
        passes: Batches of one policy that went forward, and backward unless only scores were asked for.
        datums: Datums in them.
        tokens: Target tokens in them, trained or not.
        optimizer_steps: Optimizer steps taken.
        published: Snapshots stored.
        failed: Messages that ended in an error.
        busy_seconds: Time spent on all messages.
    """

    policies: int = 0
    passes: int = 0
    datums: int = 0
    tokens: int = 0
    optimizer_steps: int = 0
    published: int = 0
    failed: int = 0
    busy_seconds: float = 0.0


class Counts:
    """What counts from one side alone: times and failures on the trainer's thread, all else on its event loop."""

    def __init__(self) -> None:
        self.passes = self.datums = self.tokens = self.optimizer_steps = self.published = self.failed = 0
        self.busy_seconds = 0.0

    def batch(self, datums: Sequence[Datum]) -> None:
        """A policy's batch has been computed."""
        self.passes += 1
        self.datums += len(datums)
        self.tokens += sum(len(datum.targets) for datum in datums)

    def timed(self, work: Callable[[], T]) -> T:
        """Do work, and count its time and whether it failed."""
        began = time.perf_counter()
        try:
            return work()
        except BaseException:  # counted, whatever it is, and raised again
            self.failed += 1
            raise
        finally:
            self.busy_seconds += time.perf_counter() - began

    def stats(self, policies: int) -> TrainerStats:
        """As they stand."""
        return TrainerStats(
            policies=policies,
            passes=self.passes,
            datums=self.datums,
            tokens=self.tokens,
            optimizer_steps=self.optimizer_steps,
            published=self.published,
            failed=self.failed,
            busy_seconds=self.busy_seconds,
        )
