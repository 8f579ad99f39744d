"""The ledger of a phase: one result per rollout id, whatever was tried how often."""

from __future__ import annotations

from collections.abc import Iterable

from tinker_actors.data import Episode, Group
from tinker_actors.rollouts.plans import Rollout, RolloutPlan


class Ledger:
    """Takes each rollout's first result and drops the others.

    Attributes:
        late: How many results were dropped, because another attempt's came first or nobody asked for them.
    """

    def __init__(self, plan: RolloutPlan) -> None:
        self._plan = plan
        self._results: dict[str, Episode] = {}
        self._expected = {rollout.id for rollout in plan.rollouts}
        self.late = 0

    @property
    def done(self) -> int:
        """How many rollouts have a result."""
        return len(self._results)

    @property
    def total(self) -> int:
        """How many were planned."""
        return len(self._expected)

    @property
    def complete(self) -> bool:
        """Whether every rollout has a result."""
        return self.done == self.total

    def accept(self, episode: Episode) -> bool:
        """Take a result; False if it is late or was never asked for, and so is dropped and counted."""
        if episode.id in self._results or episode.id not in self._expected:
            self.late += 1
            return False
        self._results[episode.id] = episode
        return True

    def missing(self, rollouts: Iterable[Rollout]) -> tuple[Rollout, ...]:
        """Those of `rollouts` without a result."""
        return tuple(rollout for rollout in rollouts if rollout.id not in self._results)

    def groups(self) -> tuple[Group, ...]:
        """The groups in the plan's order, the episodes of each in its order."""
        return tuple(
            Group(task=group[0].task, episodes=tuple(self._results[rollout.id] for rollout in group))
            for group in self._plan.groups
        )
