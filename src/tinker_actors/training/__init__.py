"""Training: losses, optimizers, checkpoints and the trainer actor. Names that need torch resolve on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tinker_actors.training.contract import (
    LOSS_DEFAULTS,
    AdamParams,
    ForwardBackwardResult,
    LossConfig,
    LossName,
    OptimStepResult,
    PolicyInfo,
)

if TYPE_CHECKING:
    from tinker_actors.training.engine import TrainingEngine
    from tinker_actors.training.trainer import Trainer

__all__ = [
    "LOSS_DEFAULTS",
    "AdamParams",
    "ForwardBackwardResult",
    "LossConfig",
    "LossName",
    "OptimStepResult",
    "PolicyInfo",
    "Trainer",
    "TrainingEngine",
]

_HOMES = {"Trainer": "trainer", "TrainingEngine": "engine"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
