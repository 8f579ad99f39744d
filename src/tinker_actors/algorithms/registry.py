"""The estimators by the names that configurations use."""

from __future__ import annotations

from tinker_actors.algorithms.dr_grpo import dr_grpo
from tinker_actors.algorithms.estimators import Estimator
from tinker_actors.algorithms.grpo import grpo, grpo_no_std
from tinker_actors.algorithms.rloo import rloo
from tinker_actors.errors import AlgorithmError

ESTIMATORS: dict[str, Estimator] = {
    "grpo": grpo,
    "grpo_no_std": grpo_no_std,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
}


def estimator(name: str) -> Estimator:
    """The estimator of a name.

    Raises:
        AlgorithmError: There is none.
    """
    if name not in ESTIMATORS:
        raise AlgorithmError(f"algorithm is {name!r}; one of {', '.join(ESTIMATORS)} is needed")
    return ESTIMATORS[name]
