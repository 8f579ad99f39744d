"""From a step's groups of episodes to the batch that a run's policy trains on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinker_actors.algorithms import (
    Aggregation,
    PolicyBatch,
    RoleBaseline,
    estimator,
    policy_batch,
    seat_groups,
)
from tinker_actors.data import Group
from tinker_actors.scheduler.config import RunConfig


class Signals:
    """Estimates the advantages of one policy, step after step.

    Args:
        config: The run.
        policy: The policy's id.
        constant: Tokens, for the aggregation `constant`.
        baselines: What the estimator remembers of the steps before, as `baselines` of the run that is taken up.
    """

    def __init__(self, config: RunConfig, policy: str, *, constant: int, baselines: Mapping[str, float]) -> None:
        self._config = config
        self._policy = policy
        self._constant = constant
        self._estimate = estimator(config.advantage_config())
        if isinstance(self._estimate, RoleBaseline):
            self._estimate.baselines.update(baselines)

    @property
    def baselines(self) -> dict[str, float]:
        """What the estimator remembers; empty for most."""
        return dict(self._estimate.baselines) if isinstance(self._estimate, RoleBaseline) else {}

    async def batch(self, groups: Sequence[Group]) -> PolicyBatch:
        """The batch of a step."""
        config = self._config
        return policy_batch(
            seat_groups(groups)[self._policy],
            self._estimate,
            _aggregation(config),
            constant=self._constant,
            keep_flat=bool(config.kl.coefficient or config.algorithm.entropy_coefficient),
        )


def _aggregation(config: RunConfig) -> Aggregation:
    named = config.algorithm.aggregation
    return named or ("constant" if config.algorithm.name == "dr_grpo" else "token_mean")
