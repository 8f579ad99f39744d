# ruff: noqa: N806 (tensor names bear shape suffixes)
"""The loss of a value head."""

from __future__ import annotations

import torch
from torch import Tensor

from tinker_actors.errors import DataError
from tinker_actors.training.losses.inputs import LossInputs


def value_loss(inputs: LossInputs, clip: float | None) -> Tensor:
    """½ (V − R)² at every trained token, with gradients, shape (N,).

    With a clip c it is ½ max((V − R)², (V' − R)²), V' = old + clip(V − old, −c, c): a value that has moved further than
    c from where it was, towards its target, moves on no more.

    Source: Schulman et al. 2017 (PPO), eq. 9, L^VF; clipped as in OpenAI's `baselines` and Engstrom et al. 2020,
    "Implementation Matters in Deep Policy Gradients", section 3, with the half of the gradient's usual form.

    Raises:
        DataError: There are no values, or no returns.
    """
    values_N, returns_N, old_values_N = _rows(inputs)
    errors_N = (values_N - returns_N).square()
    if clip is not None:
        held_N = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
        errors_N = torch.maximum(errors_N, (held_N - returns_N).square())
    return 0.5 * errors_N


def value_metrics(inputs: LossInputs, clip: float | None) -> dict[str, float]:
    """`value_loss`, the mean without coefficient; `value_mean`, `return_mean`; `value_explained`, the share of the
    returns' variance that the values explain, 0 where returns don't vary; `value_clip_fraction`, with a clip.
    """
    values_N, returns_N, old_values_N = _rows(inputs)
    variance = float(returns_N.var(correction=0))
    found = {
        "value_loss": float(value_loss(inputs, clip).mean()),
        "value_mean": float(values_N.mean()),
        "return_mean": float(returns_N.mean()),
        "value_explained": 1 - float((returns_N - values_N).var(correction=0)) / variance if variance else 0.0,
    }
    if clip is not None:
        found["value_clip_fraction"] = float(((values_N - old_values_N).abs() > clip).double().mean())
    return found


def _rows(inputs: LossInputs) -> tuple[Tensor, Tensor, Tensor]:
    if inputs.values_N is None or inputs.returns_N is None or inputs.old_values_N is None:
        raise DataError("a value loss needs a policy with a value head, and datums with returns and values")
    return inputs.values_N, inputs.returns_N, inputs.old_values_N
