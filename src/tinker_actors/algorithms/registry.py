"""The estimators by the names that configurations use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tinker_actors.algorithms.dr_grpo import dr_grpo
from tinker_actors.algorithms.estimators import Estimator, GroupEstimator, by_group, over_batch
from tinker_actors.algorithms.gae import gae_estimator
from tinker_actors.algorithms.grpo import grpo, grpo_no_std
from tinker_actors.algorithms.leave_one_out import leave_one_out
from tinker_actors.algorithms.max_rl import max_rl
from tinker_actors.algorithms.pass_at_k import pass_at_k
from tinker_actors.algorithms.reinforce_pp import reinforce_pp, reinforce_pp_baseline
from tinker_actors.algorithms.rloo import rloo
from tinker_actors.algorithms.role_baseline import RoleBaseline
from tinker_actors.algorithms.settings import AdvantageConfig
from tinker_actors.algorithms.turn_returns import turn_returns

GROUP_ESTIMATORS: Mapping[str, GroupEstimator] = {
    "grpo": grpo,
    "grpo_no_std": grpo_no_std,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "leave_one_out": leave_one_out,
    "max_rl": max_rl,
}
"""The estimators that look at the rewards of one group alone and have no settings."""

_NEED_OTHERS = frozenset({"rloo", "leave_one_out"})


def estimator(config: AdvantageConfig) -> Estimator:
    """The configured estimator. That of `role_baseline` is a `RoleBaseline`, which remembers."""
    found = config.settings()
    match config.name:
        case "reinforce_pp":
            return over_batch(reinforce_pp)
        case "reinforce_pp_baseline":
            return over_batch(reinforce_pp_baseline)
        case "pass_at_k":
            return by_group(partial(pass_at_k, k=found["pass_k"]), least=config.least_group)
        case "role_baseline":
            return RoleBaseline(found["baseline_decay"])
        case "turn_returns" | "gae":
            per = found.pop("discount_per")
            return turn_returns(per=per, **found) if config.name == "turn_returns" else gae_estimator(per=per, **found)
        case name:
            return by_group(GROUP_ESTIMATORS[name], least=2 if name in _NEED_OTHERS else 1)
