"""Advantages and losses of a user's own: functions by where they lie, `file.py:function` or `module:function`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tinker_actors.algorithms import Estimator, by_group
from tinker_actors.data import Datum
from tinker_actors.environments.loading import load_function
from tinker_actors.errors import AlgorithmError, ConfigError
from tinker_actors.training import ForwardBackwardResult, TrainsPolicies

if TYPE_CHECKING:
    from tinker_actors.scheduler.config import RunConfig
    from tinker_actors.training.custom_loss import CustomLoss
    from tinker_actors.training.trainer import Trainer

Pass: TypeAlias = tuple[str, Sequence[Datum]]
"""A policy, and the datums that it learns from."""


def check_objectives(config: RunConfig) -> None:
    """Load the functions that a run names.

    Raises:
        ConfigError: One isn't found, or can't be imported.
    """
    own = config.algorithm
    for key, name in (("algorithm.name", own.name), ("algorithm.loss", own.loss)):
        if is_own(name):
            _function(key, name)


def is_own(name: str) -> bool:
    """Whether an estimator or a loss is a function of the user's rather than one that comes with the package."""
    return ":" in name


def own_estimator(source: str) -> Estimator:
    """The estimator that calls the user's function with the rewards of one group.

    Raises:
        ConfigError: It isn't found, or can't be imported.
    """
    function = _function("algorithm.name", source)

    def advantages(rewards: Sequence[float]) -> list[float]:
        found = [float(value) for value in function(list(rewards))]
        if len(found) != len(rewards) or not all(map(math.isfinite, found)):
            raise AlgorithmError(
                f"{source} gave {found} for the rewards {list(rewards)}; a finite advantage for each is needed"
            )
        return found

    return by_group(advantages)


def own_loss(source: str) -> CustomLoss:
    """The user's loss, as the file is now: a run loads it once.

    Raises:
        ConfigError: It isn't found, or can't be imported.
    """
    return cast("CustomLoss", _function("algorithm.loss", source))


async def own_passes(
    trainer: TrainsPolicies, batches: Sequence[Pass], function: CustomLoss
) -> list[ForwardBackwardResult]:
    """Add the gradients of the user's loss, policy after policy.

    Returns:
        As of `Trainer.forward_backward`, with the metrics that the function gives beside those of all RL losses.

    Raises:
        AlgorithmError: As of `forward_backward_custom`.
    """
    from tinker_actors.training.custom import forward_backward_custom
    from tinker_actors.training.metrics import sampled_metrics

    results: list[ForwardBackwardResult] = []
    for policy, datums in batches:
        found = await forward_backward_custom(cast("Trainer", trainer), policy, datums, function)
        results.append(replace(found, metrics={**sampled_metrics(datums, found.logprobs), **found.metrics}))
    return results


def _function(key: str, source: str) -> Callable[..., Any]:
    try:
        return load_function(source)
    except ConfigError as error:
        raise ConfigError(f"{key} is {source!r}: {error}") from error
