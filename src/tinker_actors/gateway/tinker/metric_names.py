"""Metrics under the names that the Tinker client's library needs."""

from __future__ import annotations

import math
from collections.abc import Mapping

_REDUCTIONS = ("sum", "mean", "min", "max")
_SUMS = ("tokens", "datums")


def named_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics as `name:reduction`: how the client's library puts those of a batch's parts together. All are finite.

    >>> named_metrics({"loss_sum": 1.5, "ratio_max": 2.0, "clip_fraction": 0.0, "tokens": 3.0})
    {'loss:sum': 1.5, 'ratio:max': 2.0, 'clip_fraction:mean': 0.0, 'tokens:sum': 3.0}
    """
    return {_named(name): float(value) for name, value in metrics.items() if math.isfinite(value)}


def _named(name: str) -> str:
    stem, _, last = name.rpartition("_")
    if stem and last in _REDUCTIONS:
        return f"{stem}:{last}"
    return f"{name}:{'sum' if name in _SUMS else 'mean'}"
