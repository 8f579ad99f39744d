"""tinker_actors' trainer, one policy after the other."""

from __future__ import annotations

from benchmarks.training_peers import ours
from tinker_actors.data import Datum
from tinker_actors.training import LossConfig


class System(ours.System):
    """Passes of their own for the eight policies."""

    def gradients(self, batches: list[tuple[str, list[Datum], LossConfig]]) -> None:
        """Those of all policies, each in its own pass."""
        for policy, datums, loss in batches:
            self.engine.forward_backward(policy, datums, loss)
