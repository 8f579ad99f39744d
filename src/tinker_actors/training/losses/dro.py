# ruff: noqa: N806 (tensor names bear shape suffixes)
"""Policy gradient held near the sampling policy by a square, for data that another policy sampled."""

from __future__ import annotations

from torch import Tensor

from tinker_actors.errors import ConfigError
from tinker_actors.training.loss_config import LossConfig
from tinker_actors.training.losses.inputs import LossInputs


def dro(inputs: LossInputs, config: LossConfig) -> Tensor:
    """−(lp · A − ½ · beta · (lp − q)²) for every trained token, shape (N,).

    Source: Tinker API, loss `dro`; the regulariser is that of Richemond et al. 2024, "Offline Regularised Reinforcement
    Learning for Large Language Models Alignment" (direct reward optimisation), per token.
    """
    if config.beta is None:
        raise ConfigError(f"{config.name} has no beta")
    log_ratio_N = inputs.logprobs_N - inputs.old_logprobs_N
    return -(inputs.logprobs_N * inputs.advantages_N - 0.5 * config.beta * log_ratio_N.square())
