# ruff: noqa: N803 (tensor names bear shape suffixes)
"""The importance ratio between the policy and the one that sampled."""

from __future__ import annotations

from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios beyond this are held at it (a ratio of 4.9e8) and pass no gradient, so that nothing overflows."""


def safe_ratio(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """exp(logprobs - old), finite whatever the log-probs; with gradients to `logprobs_N` below the limit."""
    return (logprobs_N - old_logprobs_N).clamp(max=LOG_RATIO_LIMIT).exp()
