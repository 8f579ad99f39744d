"""Algorithms: advantage estimators, aggregations and the batches made with them. One idea, one short file."""

from tinker_actors.algorithms.aggregation import Aggregation, aggregate, factors
from tinker_actors.algorithms.batches import PolicyBatch, policy_batch, policy_batches, seat_groups, trained_advantages
from tinker_actors.algorithms.estimators import Estimator, GroupEstimator, SeatGroup, Signal, by_group, over_batch
from tinker_actors.algorithms.gae import gae
from tinker_actors.algorithms.kl_reward import kl_estimate, mean_kl, penalised
from tinker_actors.algorithms.registry import GROUP_ESTIMATORS, estimator
from tinker_actors.algorithms.role_baseline import RoleBaseline
from tinker_actors.algorithms.settings import ADVANTAGE_DEFAULTS, ADVANTAGE_SETTINGS, AdvantageConfig, AdvantageName
from tinker_actors.algorithms.sft import demonstration_datums
from tinker_actors.algorithms.valued import datums_to_value, with_values

__all__ = [
    "ADVANTAGE_DEFAULTS",
    "ADVANTAGE_SETTINGS",
    "GROUP_ESTIMATORS",
    "AdvantageConfig",
    "AdvantageName",
    "Aggregation",
    "Estimator",
    "GroupEstimator",
    "PolicyBatch",
    "RoleBaseline",
    "SeatGroup",
    "Signal",
    "aggregate",
    "by_group",
    "datums_to_value",
    "demonstration_datums",
    "estimator",
    "factors",
    "gae",
    "kl_estimate",
    "mean_kl",
    "over_batch",
    "penalised",
    "policy_batch",
    "policy_batches",
    "seat_groups",
    "trained_advantages",
    "with_values",
]
