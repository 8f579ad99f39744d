"""Role-conditioned advantages for zero-sum self-play (Liu et al. 2025, SPIRAL, arXiv 2506.24119, eq. 2).

In a zero-sum game between copies of one policy the mean reward over both seats is 0 whatever the policy does, while
the seats' own means differ (who moves first wins more often). So each environment and seat has a baseline of its own, a
running mean: b <- decay * b + (1 - decay) * r, and the advantage is r - b.

A baseline starts as the mean of the first batch that has its environment and seat (the paper's starts at 0), so that
rewards which never differ give exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tinker_actors.algorithms.estimators import SeatGroup, Signal, checked


class RoleBaseline:
    """The estimator, which remembers its baselines from step to step.

    Args:
        decay: How much of a baseline remains after each trajectory, from 0 up to but not including 1.

    Attributes:
        baselines: Baseline by `ENVIRONMENT/SEAT`; part of a run's exact state.
    """

    def __init__(self, decay: float = 0.95, baselines: Mapping[str, float] | None = None) -> None:
        self._decay = decay
        self.baselines: dict[str, float] = dict(baselines or {})

    def __call__(self, groups: Sequence[SeatGroup]) -> list[list[Signal]]:
        """Advantages of a step's trajectories, in order; each moves the baseline that it is then compared with."""
        rewards = [checked(group.rewards) for group in groups]
        keys = [f"{group.environment}/{group.seat}" for group in groups]
        for key in dict.fromkeys(keys):
            if key not in self.baselines:
                first = [value for own, row in zip(keys, rewards, strict=True) if own == key for value in row]
                # the mean of equal numbers may differ from them in the last bit
                self.baselines[key] = first[0] if min(first) == max(first) else math.fsum(first) / len(first)
        return [
            [Signal(advantage=self._advantage(key, value)) for value in row]
            for key, row in zip(keys, rewards, strict=True)
        ]

    def _advantage(self, key: str, reward: float) -> float:
        self.baselines[key] += (1.0 - self._decay) * (reward - self.baselines[key])
        return reward - self.baselines[key]
