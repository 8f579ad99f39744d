"""Policy gradient with an importance ratio per token."""

from __future__ import annotations

from torch import Tensor

from tinker_actors.training.loss_config import LossConfig
from tinker_actors.training.losses.inputs import LossInputs
from tinker_actors.training.losses.ratio import safe_ratio


def importance_sampling(inputs: LossInputs, config: LossConfig) -> Tensor:
    """−exp(lp − q) · A for every trained token, shape (N,).

    Source: Tinker API, loss `importance_sampling`; its gradient on policy is that of REINFORCE (Williams 1992, eq. 4),
    and the surrogate is L^CPI of Schulman et al. 2017 (PPO), eq. 6, per token.
    """
    return -safe_ratio(inputs.logprobs_N, inputs.old_logprobs_N) * inputs.advantages_N
