# ruff: noqa: N815 (tensor names bear shape suffixes)
"""What a loss sees: flat vectors over the trained tokens of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """N is the number of trained tokens; tokens that aren't trained never reach a loss.

    Attributes:
        logprobs_N: The policy's log-probs, with gradients.
        weights_N: Supervised weights; 0 for RL data.
        old_logprobs_N: Log-probs as sampled; 0 for supervised data.
        advantages_N: Advantages; 0 for supervised data.
    """

    logprobs_N: Tensor
    weights_N: Tensor
    old_logprobs_N: Tensor
    advantages_N: Tensor
