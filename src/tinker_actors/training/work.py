# ruff: noqa: N803, N806, N815 (tensor names bear shape suffixes)
"""One policy's batch while it is computed, however it is laid out.

Shape suffixes: T targets of a whole batch, N targets of a part of it, P places that they are predicted from, H hidden
width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tinker_actors.data import Datum
from tinker_actors.training.batching import Targets
from tinker_actors.training.contract import ForwardBackwardResult
from tinker_actors.training.loss_config import LossConfig
from tinker_actors.training.losses import loss_terms
from tinker_actors.training.metrics import batch_metrics
from tinker_actors.training.policy import TrainedPolicy


@dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """One policy's batch on its way through the passes.

    Attributes:
        policy: The policy.
        datums: The batch.
        loss: The loss.
        targets: The batch's rows.
        logprobs_T: Log-probs found so far.
        entropy_T: Entropies found so far.
        values_T: What the value head said so far; None without one.
    """

    policy: TrainedPolicy
    datums: Sequence[Datum]
    loss: LossConfig
    targets: Targets = field(init=False)
    logprobs_T: Tensor = field(init=False)
    entropy_T: Tensor = field(init=False)
    values_T: Tensor | None = field(init=False)

    def __post_init__(self) -> None:
        self.targets = Targets.of(self.datums)
        self.logprobs_T = torch.zeros_like(self.targets.weights_T)
        self.entropy_T = torch.zeros_like(self.targets.weights_T)
        self.values_T = None if self.policy.value_head is None else torch.zeros_like(self.targets.weights_T)

    def values(self, hidden_PH: Tensor, distributions_N: Tensor) -> Tensor | None:
        """What the value head says of each target, given the hidden states at their places; None without one."""
        head = self.policy.value_head
        return None if head is None else head(hidden_PH)[distributions_N.to(hidden_PH.device)]

    def take(
        self, logprobs_N: Tensor, entropy_N: Tensor, slots_N: Tensor, values_N: Tensor | None = None
    ) -> Tensor | None:
        """Keep what was found at these slots; the loss of their trained tokens, None if there are none."""
        self.logprobs_T[slots_N] = logprobs_N.detach().to(self.logprobs_T)
        self.entropy_T[slots_N] = entropy_N.detach().to(self.entropy_T)
        if self.values_T is not None and values_N is not None:
            self.values_T[slots_N] = values_N.detach().to(self.values_T)
        trained_N = self.targets.trained_T[slots_N]
        if not (torch.is_grad_enabled() and bool(trained_N.any())):
            return None
        values_N = None if values_N is None else values_N[trained_N]
        inputs = self.targets.beside(logprobs_N[trained_N], entropy_N[trained_N], slots_N[trained_N], values_N)
        return loss_terms(inputs, self.loss).sum()

    def result(self) -> ForwardBackwardResult:
        """The sums over the whole batch, in fp64."""
        slots_N = self.targets.trained_T.nonzero()[:, 0]
        values_N = None if self.values_T is None else self.values_T[slots_N]
        inputs = self.targets.beside(self.logprobs_T[slots_N], self.entropy_T[slots_N], slots_N, values_N)
        total = float(loss_terms(inputs, self.loss).sum())
        return ForwardBackwardResult(
            loss=total,
            logprobs=self._rows(self.logprobs_T),
            values=None if self.values_T is None else self._rows(self.values_T),
            metrics=batch_metrics(inputs, total, len(self.datums), self.loss),
        )

    def _rows(self, row_T: Tensor) -> tuple[tuple[float, ...], ...]:
        """A row per datum."""
        return tuple(tuple(row.tolist()) for row in row_T.split([datum.scores for datum in self.datums]))
