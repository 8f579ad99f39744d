# ruff: noqa: N803, N806 (tensor names bear shape suffixes)
"""Numbers that describe a batch after its pass, over the trained tokens only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tinker_actors.data import Datum
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
    found |= _ratio_metrics(inputs.logprobs_N, inputs.old_logprobs_N, inputs.advantages_N)
    if config.kl_coefficient:
        found["kl_reference"] = float(reference_kl(inputs, config.kl_estimator).mean())
    if config.value_coefficient:
        found |= value_metrics(inputs, config.value_clip)
    if config.name in LOSS_METRICS:
        found |= LOSS_METRICS[config.name](inputs, config)
    return found


def sampled_metrics(datums: Sequence[Datum], logprobs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Those metrics of a batch of RL datums that need its log-probs alone.

    Args:
        datums: The batch.
        logprobs: Per datum the present log-prob of each target, shape (targets,).
    """
    rows = [
        row
        for datum, present in zip(datums, logprobs, strict=True)
        for bit, *row in zip(datum.mask or (), present, datum.logprobs or (), datum.advantages or (), strict=True)
        if bit
    ]
    if not rows:
        return {"tokens": 0.0}
    present_N, sampled_N, advantages_N = torch.tensor(rows, dtype=torch.float64).T
    return {"tokens": float(len(rows)), **_ratio_metrics(present_N, sampled_N, advantages_N)}


def _ratio_metrics(logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor) -> dict[str, float]:
    log_ratio_N = (logprobs_N - old_logprobs_N).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio_N = log_ratio_N.exp()
    return {
        "advantage_mean": float(advantages_N.mean()),
        "kl_k1": float(-log_ratio_N.mean()),
        "kl_k3": float((log_ratio_N.expm1() - log_ratio_N).mean()),
        "logprob_mean": float(logprobs_N.mean()),
        "ratio_max": float(ratio_N.max()),
        "ratio_mean": float(ratio_N.mean()),
        "ratio_min": float(ratio_N.min()),
    }
