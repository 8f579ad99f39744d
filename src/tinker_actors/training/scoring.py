# ruff: noqa: N803, N806 (tensor names bear shape suffixes)
"""Models whose examples can't be packed: padded micro-batches, with the head applied only where targets are scored.

Shape suffixes: B rows, L positions, N scored targets, P distributions that they are scored under (candidates for one
position share theirs), H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tinker_actors.models.vision import Vision
from tinker_actors.training.attention import lowest
from tinker_actors.training.batching import MicroBatch
from tinker_actors.training.contract import ForwardBackwardResult
from tinker_actors.training.head import LOWEST_LOGPROB
from tinker_actors.training.passes import output_head, recomputing
from tinker_actors.training.work import Work


def run_padded(
    work: Work, batches: Sequence[MicroBatch], *, backward: bool, proceed: Callable[[], None]
) -> ForwardBackwardResult:
    """All micro-batches of a policy through its own model.

    Args:
        work: The policy's batch.
        batches: Its layout.
        backward: Whether gradients are added to the policy's parameters.
        proceed: Called before each micro-batch; what it raises ends the work.
    """
    entropy_gradient = work.loss.entropy_coefficient != 0
    remember = backward and work.loss.gradient_checkpointing
    for batch in batches:
        proceed()
        precision = work.policy.computing()
        with torch.set_grad_enabled(backward), precision, recomputing(work.policy.model, remember):
            logprobs_N, entropy_N, values_N = score(
                work.policy.model,
                batch,
                work.policy.base.vision,
                entropy_gradient=entropy_gradient,
                value_head=work.policy.value_head,
            )
            loss = work.take(logprobs_N, entropy_N, batch.slots_N, values_N)
            if loss is not None:
                loss.backward()
    return work.result()


def score(
    model: PreTrainedModel,
    batch: MicroBatch,
    vision: Vision | None = None,
    *,
    entropy_gradient: bool = False,
    value_head: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log-probs of the batch's targets, the entropies of the distributions they come from, and values there.

    Args:
        model: A transformers causal language model, LoRA layers and all.
        batch: What to compute.
        vision: How the model takes images; None if it reads none.
        entropy_gradient: Give the entropies gradients too, where enabled.
        value_head: Takes the inputs of the output head, shape (P, H), and gives a value for each.

    Returns:
        logprobs_N in fp32, with gradients where enabled; entropy_N in fp32; values_N, with gradients where enabled, or
        None without a value head.

    Raises:
        ModelError: The model has no output head.
    """
    device = next(model.parameters()).device
    places_N3 = torch.stack([batch.rows_N, batch.columns_N, batch.temperatures_N], dim=-1)
    places_P3, place_N = torch.unique_consecutive(places_N3.double(), dim=0, return_inverse=True)
    rows_P, columns_P = places_P3[:, 0].long().to(device), places_P3[:, 1].long().to(device)
    place_N = place_N.to(device)

    values: list[Tensor] = []

    def keep_scored(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Tensor]:
        hidden_PH = arguments[0][rows_P, columns_P]
        if value_head is not None:
            values.append(value_head(hidden_PH)[place_N])
        return (hidden_PH.unsqueeze(0),)

    # a hook, so that whatever the model does to its logits after the head (scaling, soft caps) is still done
    hook = output_head(model).register_forward_pre_hook(keep_scored)
    try:
        output = model(**_read(model, batch, vision, device), use_cache=False)
    finally:
        hook.remove()
    all_PV = _logprobs(output.logits[0], places_P3[:, 2], vision)
    logprobs_N = all_PV[place_N, batch.targets_N.to(device)]
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        # a few rows at a time: a whole vocabulary a row is the largest thing there is
        entropy_P = torch.cat([_entropy(rows_QV) for rows_QV in all_PV.split(128)])
    return logprobs_N, entropy_P[place_N], values[0] if values else None


def _read(model: PreTrainedModel, batch: MicroBatch, vision: Vision | None, device: torch.device) -> dict[str, Any]:
    """What the model reads: ids, attention and positions, and the images among them."""
    positions, images = batch.positions_BL, {}
    if vision is not None and batch.pictured:
        positions, _ = vision.positions(batch.pictured)
        images = vision.arguments(model, batch.pictured)
    return {
        "input_ids": batch.tokens_BL.to(device),
        "attention_mask": _mask(batch, model.dtype, device),
        "position_ids": positions.to(device),
        **images,
    }


def _logprobs(logits_PV: Tensor, temperatures_P: Tensor, vision: Vision | None) -> Tensor:
    """Log-probs over the vocabulary at each place's temperature in fp32, shape (P, V)."""
    logits_PV = logits_PV.float()
    if vision is not None:
        logits_PV = vision.suppress(logits_PV)
    if bool((temperatures_P != 1).any()):
        logits_PV = logits_PV / temperatures_P.to(logits_PV)[:, None]
    return torch.log_softmax(logits_PV, dim=-1)


def _entropy(logprobs_QV: Tensor) -> Tensor:
    """−Σ p · log p in nats, shape (Q,), for Q rows of log-probs; a token that can't be drawn counts 0."""
    return -(logprobs_QV.exp() * logprobs_QV.clamp(min=LOWEST_LOGPROB)).sum(-1)


def _mask(batch: MicroBatch, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """The batch's attention as transformers takes it: lengths as they are, pairs as numbers to be added."""
    if batch.attention is None or batch.attention.dtype != torch.bool:
        return None if batch.attention is None else batch.attention.to(device)
    hidden = torch.full((), lowest(dtype), dtype=dtype)
    return torch.where(batch.attention, torch.zeros((), dtype=dtype), hidden).to(device)
