"""A word where a run's first steps have nothing to learn from."""

from __future__ import annotations

from collections.abc import Mapping

PATIENCE = 5
"""Steps without a gradient from the beginning after which it is said."""


class Fruitless:
    """Sees the steps of a run, and says once why none of the first ones taught anything."""

    def __init__(self) -> None:
        self._steps: int | None = 0

    def after(self, metrics: Mapping[str, float]) -> str | None:
        """What is to be said after a step, if anything.

        Args:
            metrics: The step's, `grad_norm` among them unless a remote service trains.

        """
        if self._steps is None:
            return None
        self._steps = self._steps + 1 if metrics.get("grad_norm") == 0.0 else None
        if self._steps != PATIENCE:
            return None
        self._steps = None
        if metrics["failed"] == metrics["episodes"]:
            return None  # which was said each time
        if not metrics["action_tokens"]:
            return (
                f"nothing was sampled in {PATIENCE} steps, so nothing was learned: what the seats are shown leaves no "
                "room for a reply in the model's context"
            )
        return (
            f"nothing was learned in {PATIENCE} steps: within each group all rewards were equal (their mean is "
            f"{metrics['reward']:.3g}). A policy learns from what it does well now and then: demonstrations for a "
            "warm-up, easier tasks or rewards for a part of the way help"
        )
