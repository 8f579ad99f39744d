"""What the trainer is asked and what it answers. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tinker_actors.data import Datum
from tinker_actors.policies import PolicySpec, Snapshot
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
    "TrainsPolicies",
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
        grad_norm: Global L2 norm of the gradient before clipping; NaN where a remote service doesn't say.
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


class TrainsPolicies(Protocol):
    """The ref of a `Trainer`, or of an actor that answers like one: what a run asks of whatever trains its policies.

    `Trainer` says what each message does and raises.
    """

    async def create(self, spec: PolicySpec) -> str:
        """Make a policy and return its id."""
        ...

    async def delete(self, policy: str) -> None:
        """End a policy's training."""
        ...

    async def forward_backward(self, policy: str, datums: Sequence[Datum], loss: LossConfig) -> ForwardBackwardResult:
        """Add the gradient of the summed loss to the policy's pending gradients."""
        ...

    async def forward_backward_many(
        self, batches: Sequence[tuple[str, Sequence[Datum], LossConfig]]
    ) -> tuple[ForwardBackwardResult, ...]:
        """As `forward_backward` for several policies, once each."""
        ...

    async def forward(self, policy: str, datums: Sequence[Datum], loss: LossConfig) -> ForwardBackwardResult:
        """Loss and log-probs without gradients."""
        ...

    async def optim_step(self, policy: str, params: AdamParams) -> OptimStepResult:
        """Apply the pending gradients, and drop them."""
        ...

    async def publish(self, policy: str) -> Snapshot:
        """Make the present weights the policy's next snapshot."""
        ...

    async def save(self, policy: str, name: str) -> str:
        """Keep the whole training state under a name and return its handle."""
        ...

    async def load(
        self, handle: str, *, policy: str | None = None, optimizer: bool = True, store: str | None = None
    ) -> str:
        """Restore a checkpoint, as the policy that was saved or as a new one, and return the policy's id."""
        ...

    async def fork(self, handle: str, *, policy: str | None = None, store: str | None = None) -> str:
        """Make a new policy that starts cold from a snapshot's or checkpoint's weights, and return its id."""
        ...
