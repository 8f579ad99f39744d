# ruff: noqa: N803, N806 (tensor names bear shape suffixes)
"""A run's batch as a service can compute it: what the protocol has no field for is put where it has one.

The `scale` of a datum multiplies its terms. Losses whose terms are linear in the advantage take it there; where all
datums of a batch share one scale, so does what else a loss adds up, by its coefficient.

Shape suffixes: T targets of a whole batch, N trained ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from tinker_actors.data import Datum
from tinker_actors.errors import SamplingError
from tinker_actors.training.batching import Targets
from tinker_actors.training.contract import ForwardBackwardResult, LossConfig
from tinker_actors.training.losses import LossInputs, loss_terms
from tinker_actors.training.metrics import batch_metrics

Batch: TypeAlias = tuple[Sequence[Datum], LossConfig]

_PLAIN = ("cross_entropy", "importance_sampling", "ppo", "cispo")
"""Losses that every service has, and in which a target whose advantage is 0 counts for nothing, mask or no mask."""

_ENTROPY = "entropy:mean"


def sendable(datums: Sequence[Datum], loss: LossConfig, *, extended: bool) -> Batch | None:
    """A batch and loss without scales that have the same gradient; None if there are none that the service computes.

    Args:
        datums: The batch.
        loss: Its loss.
        extended: Whether the service takes this package's own extensions.
    """
    if not extended and (loss.name not in _PLAIN or loss.kl_coefficient):
        return None
    scales = {datum.scale for datum in datums}
    if scales <= {1.0}:
        return datums, loss
    if loss.name != "dro" and not (loss.kl_coefficient or loss.entropy_coefficient):
        return [_scaled(datum) for datum in datums], loss
    if len(scales) > 1:
        return None
    (scale,) = scales
    coefficients = {
        name: value * scale
        for name in ("beta", "kl_coefficient", "entropy_coefficient")
        if (value := getattr(loss, name)) is not None
    }
    return [_scaled(datum) for datum in datums], replace(loss, **coefficients)


def computed_here(loss: LossConfig) -> Callable[[Sequence[Datum], list[Tensor]], tuple[Tensor, Mapping[str, float]]]:
    """A loss as a function of log-probs, for what the service can't be asked for by name."""

    def function(datums: Sequence[Datum], logprobs: list[Tensor]) -> tuple[Tensor, Mapping[str, float]]:
        return loss_terms(_inputs(datums, torch.cat(logprobs).double(), 0.0), loss).sum(), {}

    return function


def result_here(
    datums: Sequence[Datum],
    loss: LossConfig,
    answer: ForwardBackwardResult,
    *,
    extended: bool,
    every_target: bool = False,
) -> ForwardBackwardResult:
    """What this package's trainer says of a batch, from the log-probs that a service found.

    Args:
        datums: The batch as the run has it, with its scales.
        loss: Its loss.
        answer: The service's log-probs and metrics; a metric of its own that has no namesake is kept, as `name_mean`
            for `name:mean`.
        extended: As of `sendable`; the entropy of a service without masks is over targets that aren't trained, too,
            and left out.
        every_target: Whether log-probs of targets that aren't trained are kept.

    Raises:
        SamplingError: A log-prob of a trained target is no finite number.
    """
    logprobs_T = torch.tensor([value for row in answer.logprobs for value in row], dtype=torch.float64)
    said = {name: value for name, value in answer.metrics.items() if extended or name != _ENTROPY}
    inputs = _inputs(datums, logprobs_T, said.get(_ENTROPY, 0.0))
    if not bool(torch.isfinite(inputs.logprobs_N).all()):
        raise SamplingError("the Tinker service answered with log-probs that aren't finite")
    total = float(loss_terms(inputs, loss).sum())
    metrics = batch_metrics(inputs, total, len(datums), loss)
    metrics.pop("entropy_mean", None)  # which only the service knows
    for name, value in said.items():
        stem, _, reduction = name.partition(":")
        if not {stem, f"{stem}_{reduction}"} & metrics.keys():
            metrics[f"{stem}_{reduction}" if reduction else stem] = value
    rows = answer.logprobs
    if not every_target:
        trained_T = Targets.of(datums).trained_T
        rows = tuple(
            tuple(row.tolist())
            for row in torch.where(trained_T, logprobs_T, 0.0).split([datum.scores for datum in datums])
        )
    return ForwardBackwardResult(loss=total, logprobs=rows, metrics=metrics)


def _inputs(datums: Sequence[Datum], logprobs_T: Tensor, entropy: float) -> LossInputs:
    targets = Targets.of(datums)
    slots_N = targets.trained_T.nonzero()[:, 0]
    found_N = logprobs_T[slots_N]
    return targets.beside(found_N, torch.full_like(found_N, entropy), slots_N)


def _scaled(datum: Datum) -> Datum:
    if datum.advantages is not None:
        return replace(datum, scale=1.0, advantages=tuple(value * datum.scale for value in datum.advantages))
    if datum.weights is not None:
        return replace(datum, scale=1.0, weights=tuple(value * datum.scale for value in datum.weights))
    return datum  # one with candidates, which is refused when it is sent
