"""PEFT and a plain loop, one sequence after the other: nothing is padded, and nothing is computed together."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.training_peers import peft_loop


class System(peft_loop.System):
    """Micro-batches of one row."""

    def step_ragged(self, size: int, rows: int) -> tuple[int, Callable[[], None]]:
        """A supervised step."""
        return super().step_ragged(size, min(rows, 1))
