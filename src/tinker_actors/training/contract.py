"""What the trainer is asked and what it answers. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinker_actors.training.loss_config import LOSS_DEFAULTS, SUPERVISED, KlEstimator, LossConfig, LossName, RatioLevel
from tinker_actors.training.optimizer_params import Adam8bitParams, AdamParams, MuonParams, OptimizerName

__all__ = [
    "LOSS_DEFAULTS",
    "SUPERVISED",
    "Adam8bitParams",
    "AdamParams",
    "ForwardBackwardResult",
    "KlEstimator",
    "LossConfig",
    "LossName",
    "MuonParams",
    "OptimStepResult",
    "OptimizerName",
    "PolicyInfo",
    "RatioLevel",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackwardResult:
    """What a pass over a batch found.

    Attributes:
        loss: The sum over all trained tokens of all datums.
        logprobs: Per datum, in the order given, the natural log-prob of each target at the datum's temperature, shape
            (targets,); 0 where the target isn't trained and so wasn't computed. A datum with candidates has one per
            candidate, one target's after the other's.
        metrics: Named finite numbers over the trained tokens; see the page on training.
        values: As `logprobs`, what the policy's value head says of the tokens before each target; None without one.
    """

    loss: float
    logprobs: tuple[tuple[float, ...], ...]
    metrics: Mapping[str, float]
    values: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimStepResult:
    """What an optimizer step did.

    Attributes:
        step: Optimizer steps that the policy has behind it now.
        grad_norm: Global L2 norm of the gradient before clipping.
    """

    step: int
    grad_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInfo:
    """A policy as its trainer holds it.

    Attributes:
        policy_id: The policy.
        base_model: The base model's name.
        kind: `lora` or `full`.
        step: Optimizer steps behind it.
        parameters: How many weights are trained.
        pending: How many forward_backward calls since the last optimizer step.
        snapshot: Handle of the last snapshot published, if any.
        resident: Whether its state is in memory; if not, it lies on disk until the policy is used.
    """

    policy_id: str
    base_model: str
    kind: str
    step: int
    parameters: int
    pending: int
    snapshot: str | None
    resident: bool = True
