"""The settings of one optimizer step; their class says which optimizer takes it. Loads no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from tinker_actors.errors import ConfigError

OptimizerName: TypeAlias = Literal["adamw", "adamw_8bit", "muon"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamParams:
    """One step of AdamW (Loshchilov and Hutter 2019, Algorithm 2, decoupled weight decay).

    Attributes:
        learning_rate: Step size; 0 changes no weight.
        beta1: Decay of the gradient's running mean.
        beta2: Decay of the squared gradient's running mean.
        eps: Added to the root of the second moment.
        weight_decay: Each weight shrinks by learning_rate * weight_decay before the step.
        grad_clip_norm: Scale the gradient down to this global L2 norm if it is longer; None for no clipping.
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip_norm: float | None = None

    def __post_init__(self) -> None:
        for name in ("learning_rate", "eps", "weight_decay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} is {value}; a number of at least 0 is needed")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ConfigError(f"{name} is {value}; a number in [0, 1) is needed")
        if self.grad_clip_norm is not None and not (math.isfinite(self.grad_clip_norm) and self.grad_clip_norm > 0):
            raise ConfigError(f"grad_clip_norm is {self.grad_clip_norm}; a positive number or None is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam8bitParams(AdamParams):
    """One step of AdamW whose moments are held in 8 bits, block by block (Dettmers et al. 2022).

    Tensors of fewer than 4096 numbers take plain AdamW's step.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class MuonParams(AdamParams):
    """One step of Muon (Jordan et al. 2024) on the matrices of the hidden layers, and of AdamW on all else.

    A matrix moves along its momentum, orthogonalised by Newton-Schulz iterations and scaled by 0.2 * sqrt(its longer
    side), which gives it the size of an AdamW step (Liu et al. 2025, eq. 4): one learning rate serves both.
    Embeddings, the output head, norms and biases take AdamW's step. For policies of kind `full`.

    Attributes:
        momentum: Decay of a matrix's running mean gradient (Nesterov).
        newton_schulz_steps: Iterations that orthogonalise it.
    """

    momentum: float = 0.95
    newton_schulz_steps: int = 5

    def __post_init__(self) -> None:
        AdamParams.__post_init__(self)
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum is {self.momentum}; a number in [0, 1) is needed")
        if not 1 <= self.newton_schulz_steps < 100:
            raise ConfigError(f"newton_schulz_steps is {self.newton_schulz_steps}; an integer from 1 to 99 is needed")


_CLASSES: dict[OptimizerName, type[AdamParams]] = {
    "adamw": AdamParams,
    "adamw_8bit": Adam8bitParams,
    "muon": MuonParams,
}


def params_class(name: OptimizerName) -> type[AdamParams]:
    """The class of an optimizer's settings.

    Raises:
        ConfigError: There is no such optimizer.
    """
    if name not in _CLASSES:
        raise ConfigError(f"optimizer is {name!r}; one of {', '.join(get_args(OptimizerName))} is needed")
    return _CLASSES[name]


def optimizer_of(params: AdamParams) -> OptimizerName:
    """The optimizer that settings are for."""
    return next(name for name, kind in _CLASSES.items() if type(params) is kind)
