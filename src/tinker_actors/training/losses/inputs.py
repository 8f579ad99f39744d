# ruff: noqa: N815 (tensor names bear shape suffixes)
"""What a loss sees: flat vectors over the trained tokens of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """N is the number of trained tokens; tokens that aren't trained never reach a loss.

    A datum's tokens are all there or not at all, so that a loss may reduce over them.

    Attributes:
        logprobs_N: The policy's log-probs, with gradients.
        entropy_N: Entropies in nats of the distributions that the tokens come from; with gradients if the loss has an
            entropy bonus.
        weights_N: Supervised weights; 0 for RL data.
        old_logprobs_N: Log-probs as sampled; 0 for supervised data.
        advantages_N: Advantages; 0 for supervised data.
        reference_logprobs_N: Log-probs under a reference policy; 0 without one.
        scales_N: The datums' scales.
        values_N: What the value head says, with gradients; None without one.
        returns_N: What it is trained towards; 0 where datums have none; None without a value head.
        old_values_N: What it said when advantages were made of it; as `returns_N`.
        sequences_N: Index in the batch of the datum that each token belongs to; integers.
    """

    logprobs_N: Tensor
    entropy_N: Tensor
    weights_N: Tensor
    old_logprobs_N: Tensor
    advantages_N: Tensor
    reference_logprobs_N: Tensor
    scales_N: Tensor
    sequences_N: Tensor
    values_N: Tensor | None = None
    returns_N: Tensor | None = None
    old_values_N: Tensor | None = None
