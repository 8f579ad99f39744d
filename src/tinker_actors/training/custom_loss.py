"""Losses that are a Python callable over log-probs.

The callable never leaves the caller's process: log-probs come to it, the gradient of its loss by each log-prob goes
back. A gradient g by a log-prob lp is the gradient of the cross-entropy term −w · lp with the weight w = −g, so the way
back is a pass like any other (Tinker API, `forward_backward_custom`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from tinker_actors.data import Datum
from tinker_actors.errors import AlgorithmError, DataError
from tinker_actors.training.contract import ForwardBackwardResult
from tinker_actors.training.loss_config import LossConfig

CustomLoss: TypeAlias = Callable[[Sequence[Datum], list[Tensor]], tuple[Tensor, Mapping[str, float]]]
"""Takes the datums and for each the log-probs of all its targets, shape (targets,); returns the loss, a number that
depends on them, and metrics."""

SUPERVISED_PASS = LossConfig(name="cross_entropy")
"""How a custom loss's passes are computed unless said otherwise."""

_NO_RL_ROWS = dict.fromkeys(("mask", "logprobs", "advantages", "reference_logprobs", "returns", "values"))


def scorable(datums: Sequence[Datum]) -> list[Datum]:
    """Supervised datums of the same targets, RL ones included: any pass can score them."""
    return [weighted(datum, [0.0] * datum.scores) for datum in datums]


def weighted(datum: Datum, weights: Sequence[float], *, without: Collection[int] = ()) -> Datum:
    """The supervised datum of the same targets, or candidates, with these weights in their place.

    Args:
        datum: Supervised or RL.
        weights: One per log-prob of the datum.
        without: Tokens that get weight 0 whatever is given for them.

    Raises:
        DataError: Not one weight per log-prob of the datum.
    """
    if len(weights) != datum.scores:
        raise DataError(f"{datum.where}: {len(weights)} gradients for {datum.scores} log-probs; one each is needed")
    tokens = itertools.chain.from_iterable(datum.topk_targets or (datum.targets,))
    weights = [0.0 if token in without else weight for token, weight in zip(tokens, weights, strict=True)]
    if datum.topk_targets is None:
        return replace(datum, **_NO_RL_ROWS, sampled_tokens=0, scale=1.0, weights=tuple(weights))
    left = iter(weights)
    rows = tuple(tuple(itertools.islice(left, len(candidates))) for candidates in datum.topk_targets)
    return replace(datum, scale=1.0, topk_weights=rows)


def evaluate(
    function: CustomLoss, datums: Sequence[Datum], scored: ForwardBackwardResult
) -> tuple[ForwardBackwardResult, tuple[tuple[float, ...], ...]]:
    """Call the callable on log-probs, and differentiate it.

    Returns:
        What `forward_backward_custom` returns, and the gradient by each log-prob: a row per datum.

    Raises:
        AlgorithmError: As of `forward_backward_custom`.
    """
    logprobs = [torch.tensor(row, requires_grad=True) for row in scored.logprobs]
    with torch.enable_grad():
        loss, metrics = function(datums, list(logprobs))
        if loss.numel() != 1 or not math.isfinite(loss.item()):
            raise AlgorithmError(f"the custom loss is {loss.tolist()}; one finite number is needed")
        if not loss.requires_grad:
            raise AlgorithmError("the custom loss doesn't depend on the log-probs, so it has no gradient")
        found = torch.autograd.grad(loss, logprobs, allow_unused=True)
    gradients = [torch.zeros_like(row) if grad is None else grad for row, grad in zip(logprobs, found, strict=True)]
    for datum, row in zip(datums, gradients, strict=True):
        if not bool(torch.isfinite(row).all()):
            raise AlgorithmError(f"the custom loss has a gradient that isn't finite at {datum.where}: {row.tolist()}")
    result = replace(
        scored,
        loss=loss.item(),
        metrics={"loss_sum": loss.item(), "datums": float(len(datums)), **metrics},
    )
    return result, tuple(tuple(row.tolist()) for row in gradients)
