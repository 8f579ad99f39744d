"""Training: losses, optimizers, checkpoints and the trainer actor. Names that need torch resolve on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker_actors.lazy import lazy_names
from tinker_actors.training.contract import (
    LOSS_DEFAULTS,
    Adam8bitParams,
    AdamParams,
    ForwardBackwardResult,
    KlEstimator,
    LossConfig,
    LossName,
    MuonParams,
    OptimizerName,
    OptimStepResult,
    PolicyInfo,
    RatioLevel,
    TrainsPolicies,
)
from tinker_actors.training.counts import TrainerStats
from tinker_actors.training.residency import Residency

if TYPE_CHECKING:
    from tinker_actors.training.custom import forward_backward_custom
    from tinker_actors.training.custom_loss import CustomLoss
    from tinker_actors.training.engine import TrainingEngine
    from tinker_actors.training.trainer import Trainer

__all__ = [
    "LOSS_DEFAULTS",
    "Adam8bitParams",
    "AdamParams",
    "CustomLoss",
    "ForwardBackwardResult",
    "KlEstimator",
    "LossConfig",
    "LossName",
    "MuonParams",
    "OptimStepResult",
    "OptimizerName",
    "PolicyInfo",
    "RatioLevel",
    "Residency",
    "Trainer",
    "TrainerStats",
    "TrainingEngine",
    "TrainsPolicies",
    "forward_backward_custom",
]

_HOMES = {
    "CustomLoss": "custom_loss",
    "Trainer": "trainer",
    "TrainingEngine": "engine",
    "forward_backward_custom": "custom",
}

__getattr__ = lazy_names(__name__, _HOMES)
