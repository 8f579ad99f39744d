# ruff: noqa: N806 (tensor names bear shape suffixes)
"""Numbers that describe a batch after its pass, over the trained tokens only."""

from __future__ import annotations

import torch

from tinker_actors.training.loss_config import LossConfig
from tinker_actors.training.losses import LOG_RATIO_LIMIT, LOSS_METRICS, LossInputs, reference_kl, value_metrics


@torch.no_grad()
def batch_metrics(inputs: LossInputs, loss: float, datums: int, config: LossConfig) -> dict[str, float]:
    """Metrics of a whole batch in fp64, the same however it was split. N trained tokens; all numbers finite.

    `kl_k1` and `kl_k3` estimate KL(old || new) from the sampled tokens (J. Schulman, "Approximating KL Divergence",
    2020): the mean of −log r and of r − 1 − log r, with r = new / old.
    """
    tokens = inputs.logprobs_N.numel()
    found = {"loss_sum": loss, "datums": float(datums), "tokens": float(tokens)}
    if tokens == 0:
        return found
    found["entropy_mean"] = float(inputs.entropy_N.mean())
    if config.is_supervised:
        weight = float(inputs.weights_N.sum())
        found["weight_sum"] = weight
        if weight:
            found["loss_per_weight"] = loss / weight
        return found
    log_ratio_N = (inputs.logprobs_N - inputs.old_logprobs_N).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio_N = log_ratio_N.exp()
    found |= {
        "advantage_mean": float(inputs.advantages_N.mean()),
        "kl_k1": float(-log_ratio_N.mean()),
        "kl_k3": float((log_ratio_N.expm1() - log_ratio_N).mean()),
        "logprob_mean": float(inputs.logprobs_N.mean()),
        "ratio_max": float(ratio_N.max()),
        "ratio_mean": float(ratio_N.mean()),
        "ratio_min": float(ratio_N.min()),
    }
    if config.kl_coefficient:
        found["kl_reference"] = float(reference_kl(inputs, config.kl_estimator).mean())
    if config.value_coefficient:
        found |= value_metrics(inputs, config.value_clip)
    if config.name in LOSS_METRICS:
        found |= LOSS_METRICS[config.name](inputs, config)
    return found
