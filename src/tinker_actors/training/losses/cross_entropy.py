"""Weighted negative log-likelihood."""

from __future__ import annotations

from torch import Tensor

from tinker_actors.training.contract import LossConfig
from tinker_actors.training.losses.inputs import LossInputs


def cross_entropy(inputs: LossInputs, config: LossConfig) -> Tensor:
    """−w · lp for every trained token, shape (N,).

    Source: Tinker API, loss `cross_entropy`: −Σ w · log p(target), summed over tokens.
    """
    return -inputs.weights_N * inputs.logprobs_N
