# ruff: noqa: N803, N806 (tensor names bear shape suffixes)
"""Log-probs from hidden states, a few rows of logits at a time.

The log-softmax of a target t is z_t − log Σ exp z with z = h Wᵀ / temperature, so its gradient with respect to h is
(W_t − p W) / temperature, where p is the distribution. Where W is frozen, p W is all that the backward pass needs: one
row as wide as the hidden state is kept for each distribution, and no logits. Where W is trained, the logits are
computed again in the backward pass.

Shape suffixes: P distributions, Q those of one chunk, N targets, H hidden width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

CHUNK = 128
"""Rows of logits that exist at one time."""

# p · log p is 0 in fp32 long before this; it keeps −inf out of the product and its gradient.
LOWEST_LOGPROB = -1e4


def is_frozen(head: nn.Module) -> bool:
    """Whether the head is the base's own."""
    return type(head) is nn.Linear and not any(parameter.requires_grad for parameter in head.parameters())


def head_scores(
    head: nn.Module,
    hidden_PH: Tensor,
    temperatures_P: Tensor,
    distributions_N: Tensor,
    targets_N: Tensor,
    *,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probs of targets and entropies in nats of the distributions.

    Args:
        head: The output head, a linear layer or an adapted one.
        hidden_PH: Its inputs.
        temperatures_P: Divisors of the logits, fp32.
        distributions_N: The distribution of each target, ascending.
        targets_N: Target ids.
        entropy_gradient: Give the entropies gradients too, where enabled.

    Returns:
        logprobs_N in fp32, with gradients where enabled; entropy_P in fp32.
    """
    if is_frozen(head):
        return _FrozenHead.apply(  # pyright: ignore[reportReturnType]
            hidden_PH, head.weight, head.bias, temperatures_P, distributions_N, targets_N, entropy_gradient
        )
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    for first, place, hidden_QH, temperatures_Q in _chunks(hidden_PH, temperatures_P, distributions_N):
        arguments = head, hidden_QH, temperatures_Q, distributions_N[place] - first, targets_N[place]
        found = (
            checkpoint(_trained_head, *arguments, use_reentrant=False)
            if torch.is_grad_enabled()
            else _trained_head(*arguments)
        )
        logprobs.append(found[0])
        entropies.append(found[1] if entropy_gradient else found[1].detach())
    return torch.cat(logprobs), torch.cat(entropies)


def _chunks(hidden_PH: Tensor, temperatures_P: Tensor, distributions_N: Tensor):
    """First distribution, targets, hidden states and temperatures of each chunk."""
    for first in range(0, hidden_PH.shape[0], CHUNK):
        last = min(first + CHUNK, hidden_PH.shape[0])
        ends = torch.searchsorted(distributions_N, torch.tensor([first, last], device=distributions_N.device)).tolist()
        yield first, slice(*ends), hidden_PH[first:last], temperatures_P[first:last]


def _trained_head(
    head: nn.Module, hidden_QH: Tensor, temperatures_Q: Tensor, distributions_N: Tensor, targets_N: Tensor
) -> tuple[Tensor, Tensor]:
    all_QV = torch.log_softmax(head(hidden_QH).float() / temperatures_Q[:, None], dim=-1)
    entropy_Q = -(all_QV.exp() * all_QV.clamp(min=LOWEST_LOGPROB)).sum(-1)
    return all_QV[distributions_N, targets_N], entropy_Q


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        hidden_PH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        temperatures_P: Tensor,
        distributions_N: Tensor,
        targets_N: Tensor,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        wants = ctx.needs_input_grad[0]
        logprobs_N = hidden_PH.new_empty(targets_N.shape[0], dtype=torch.float32)
        entropy_P = hidden_PH.new_empty(hidden_PH.shape[0], dtype=torch.float32)
        mean_PH = torch.empty_like(hidden_PH) if wants else None
        slope_PH = torch.empty_like(hidden_PH) if wants and entropy_gradient else None
        for first, place, hidden_QH, temperatures_Q in _chunks(hidden_PH, temperatures_P, distributions_N):
            logits_QV = linear(hidden_QH, weight_VH, bias_V).float().div_(temperatures_Q[:, None])
            all_QV = torch.log_softmax(logits_QV, dim=-1)
            logprobs_N[place] = all_QV[distributions_N[place] - first, targets_N[place]]
            here = slice(first, first + hidden_QH.shape[0])
            probs_QV = torch.exp(all_QV, out=logits_QV)
            all_QV.clamp_(min=LOWEST_LOGPROB)
            entropy_P[here] = -torch.linalg.vecdot(probs_QV, all_QV)
            if mean_PH is not None:
                mean_PH[here] = probs_QV.to(weight_VH.dtype) @ weight_VH
            if mean_PH is not None and slope_PH is not None:
                # dH/dz_j = −p_j (log p_j + H)
                weighted_QH = all_QV.mul_(probs_QV).to(weight_VH.dtype) @ weight_VH
                slope_PH[here] = -(weighted_QH + entropy_P[here, None].to(weighted_QH) * mean_PH[here])
        ctx.save_for_backward(mean_PH, slope_PH, weight_VH, temperatures_P, distributions_N, targets_N)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_P)
        return logprobs_N, entropy_P

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        logprobs_N, entropy_P = grad_outputs
        mean_PH, slope_PH, weight_VH, temperatures_P, distributions_N, targets_N = ctx.saved_tensors
        total_P = torch.zeros_like(temperatures_P).index_add_(0, distributions_N, logprobs_N)
        out_PH = mean_PH * -total_P[:, None].to(mean_PH)
        rows_NH = weight_VH[targets_N] * logprobs_N[:, None].to(weight_VH.dtype)
        out_PH.index_add_(0, distributions_N, rows_NH)
        if slope_PH is not None:
            out_PH += slope_PH * entropy_P[:, None].to(slope_PH)
        return (out_PH / temperatures_P[:, None].to(out_PH), None, None, None, None, None, None)
