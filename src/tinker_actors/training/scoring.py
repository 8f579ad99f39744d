# ruff: noqa: N806 (tensor names bear shape suffixes)
"""Log-probs of chosen targets, with the head applied only where they are wanted.

Shape suffixes: B rows, L positions, N scored targets, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tinker_actors.errors import ModelError
from tinker_actors.training.batching import MicroBatch


def score(model: PreTrainedModel, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """Log-probs of the batch's targets and the entropies of the distributions they come from.

    Args:
        model: A transformers causal language model, LoRA layers and all.
        batch: What to compute.

    Returns:
        logprobs_N in fp32, with gradients where enabled; entropy_N in fp32 without.

    Raises:
        ModelError: The model has no output head.
    """
    device = next(model.parameters()).device
    rows_N, columns_N = batch.rows_N.to(device), batch.columns_N.to(device)

    def keep_scored(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Tensor]:
        return (arguments[0][rows_N, columns_N].unsqueeze(0),)

    head = model.get_output_embeddings()
    if head is None:
        raise ModelError(f"{type(model).__name__} has no output head; a causal language model is needed")
    # A hook, so that whatever the model does to its logits after the head (scaling, soft caps) is still done.
    hook = head.register_forward_pre_hook(keep_scored)
    try:
        output = model(
            input_ids=batch.tokens_BL.to(device),
            attention_mask=_mask(batch, model.dtype, device),
            position_ids=batch.positions_BL.to(device),
            use_cache=False,
        )
    finally:
        hook.remove()
    logits_NV = output.logits[0].float()
    if bool((batch.temperatures_N != 1).any()):
        logits_NV = logits_NV / batch.temperatures_N.to(device)[:, None]
    all_NV = torch.log_softmax(logits_NV, dim=-1)
    logprobs_N = all_NV.gather(1, batch.targets_N.to(device)[:, None])[:, 0]
    with torch.no_grad():
        # a few rows at a time: a whole vocabulary a row is the largest thing there is
        entropy_N = torch.cat([torch.special.entr(rows.exp()).sum(-1) for rows in all_NV.split(128)])
    return logprobs_N, entropy_N


def _mask(batch: MicroBatch, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """The batch's attention as transformers takes it: lengths as they are, pairs as numbers to be added."""
    if batch.attention is None or batch.attention.dtype != torch.bool:
        return None if batch.attention is None else batch.attention.to(device)
    hidden = torch.full((), torch.finfo(dtype).min, dtype=dtype)
    return torch.where(batch.attention, torch.zeros((), dtype=dtype), hidden).to(device)
