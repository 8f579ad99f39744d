"""From a step's groups of episodes to the batch that a run's policy trains on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinker_actors.algorithms import (
    PolicyBatch,
    RoleBaseline,
    SeatGroup,
    datums_to_value,
    estimator,
    policy_batch,
    seat_groups,
    with_values,
)
from tinker_actors.data import Group
from tinker_actors.errors import AlgorithmError
from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.objectives import is_own, own_estimator
from tinker_actors.training import LossConfig, TrainsPolicies

_SCORED = LossConfig(name="importance_sampling")


class Signals:
    """Estimates the advantages of one policy, step after step.

    Args:
        config: The run.
        trainer: Holds the policy, and its value head if it has one.
        policy: The policy's id.
        constant: Tokens, for the aggregation `constant`.
        baselines: What the estimator remembers of the steps before, as `baselines` of the run that is taken up.
    """

    def __init__(
        self, config: RunConfig, trainer: TrainsPolicies, policy: str, *, constant: int, baselines: Mapping[str, float]
    ) -> None:
        self._config = config
        self._trainer = trainer
        self._policy = policy
        self._constant = constant
        name = config.algorithm.name
        self._estimate = own_estimator(name) if is_own(name) else estimator(config.advantage_config())
        if isinstance(self._estimate, RoleBaseline):
            self._estimate.baselines.update(baselines)

    @property
    def baselines(self) -> dict[str, float]:
        """What the estimator remembers; empty for most."""
        return dict(self._estimate.baselines) if isinstance(self._estimate, RoleBaseline) else {}

    async def batch(self, groups: Sequence[Group]) -> PolicyBatch:
        """The batch of a step."""
        config = self._config
        own = seat_groups(groups).get(self._policy)
        if not own:  # none of its episodes is valid
            return PolicyBatch(datums=(), trajectories=0, left_out=0, action_tokens=0, groups=0, flat_groups=0)
        valued = config.policy.value_head
        return policy_batch(
            await self._valued(own) if valued else own,
            self._estimate,
            config.aggregation,
            constant=self._constant,
            keep_flat=bool(config.kl.coefficient or config.algorithm.entropy_coefficient or valued),
        )

    async def _valued(self, groups: Sequence[SeatGroup]) -> list[SeatGroup]:
        """The groups with what the value head says before the step's update."""
        datums = datums_to_value(groups)
        if not datums:
            return with_values(groups, (), ())
        scored = await self._trainer.forward(self._policy, datums, _SCORED)
        if scored.values is None:
            raise AlgorithmError(f"policy {self._policy!r} has no value head; its checkpoint was saved without one")
        return with_values(groups, datums, scored.values)
