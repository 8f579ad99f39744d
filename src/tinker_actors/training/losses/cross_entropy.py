"""Weighted negative log-likelihood."""

from __future__ import annotations

from torch import Tensor

from tinker_actors.training.loss_config import LossConfig
from tinker_actors.training.losses.inputs import LossInputs


def cross_entropy(inputs: LossInputs, config: LossConfig) -> Tensor:
    """−w · lp for every trained token, shape (N,).

    A candidate of a top-K target distribution is a trained token like any other, with its weight in the distribution.

    Source: Tinker API, loss `cross_entropy`: −Σ w · log p(target), summed over tokens and, with top-K targets, over
    candidates.
    """
    return -inputs.weights_N * inputs.logprobs_N
