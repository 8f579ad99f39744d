# ruff: noqa: N806 (tensor names bear shape suffixes)
"""KL to a reference policy, estimated at sampled tokens."""

from __future__ import annotations

from torch import Tensor

from tinker_actors.training.loss_config import KlEstimator
from tinker_actors.training.losses.inputs import LossInputs
from tinker_actors.training.losses.ratio import safe_ratio


def reference_kl(inputs: LossInputs, estimator: KlEstimator) -> Tensor:
    """An estimate of KL(policy || reference) at every trained token, with gradients, shape (N,).

    With d = lp − reference: k1 = d, k2 = ½ d², k3 = exp(−d) − 1 + d. As a loss on tokens that the policy sampled, k2
    and k3 pull towards the reference, k2 with the KL's own expected gradient; the gradient of k1 is 0 in expectation,
    so k1 belongs into the reward.

    Source: J. Schulman, "Approximating KL Divergence", 2020; k3 as a loss is Shao et al. 2024 (DeepSeekMath), eq. 4.
    """
    distance_N = inputs.logprobs_N - inputs.reference_logprobs_N
    match estimator:
        case "k1":
            return distance_N
        case "k2":
            return 0.5 * distance_N.square()
        case "k3":
            return safe_ratio(inputs.reference_logprobs_N, inputs.logprobs_N) - 1 + distance_N
