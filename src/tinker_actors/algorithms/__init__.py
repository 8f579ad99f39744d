"""Algorithms: advantage estimators, aggregations and the batches made with them. One idea, one short file."""

from tinker_actors.algorithms.aggregation import Aggregation, aggregate, factors
from tinker_actors.algorithms.batches import PolicyBatch, policy_batches
from tinker_actors.algorithms.estimators import Estimator
from tinker_actors.algorithms.kl_reward import kl_estimate, mean_kl, penalised
from tinker_actors.algorithms.registry import ESTIMATORS, estimator
from tinker_actors.algorithms.sft import demonstration_datums

__all__ = [
    "ESTIMATORS",
    "Aggregation",
    "Estimator",
    "PolicyBatch",
    "aggregate",
    "demonstration_datums",
    "estimator",
    "factors",
    "kl_estimate",
    "mean_kl",
    "penalised",
    "policy_batches",
]
