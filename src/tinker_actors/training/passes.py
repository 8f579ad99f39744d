# ruff: noqa: N806 (tensor names bear shape suffixes)
"""Passes over the base that several policies share.

Each policy's batch is cut into blocks as if it were alone; a pass takes the next block of as many policies as fit. A
policy's gradient is therefore the sum of the same products in the same order, whoever shares its passes.

Shape suffixes: T tokens of a pass, P distributions and N targets of a block, H hidden width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from tinker_actors.errors import ModelError
from tinker_actors.kernels import NO_ADAPTER
from tinker_actors.models.lora import MultiLoraModel
from tinker_actors.training.attention import packed, spans_of
from tinker_actors.training.contract import ForwardBackwardResult
from tinker_actors.training.head import head_scores, is_frozen
from tinker_actors.training.packing import Block
from tinker_actors.training.work import Work

# A matrix product takes other ways through its rows where they are few, and vector instructions others through the last
# elements; with a whole number of these every row is computed alike in every pass.
ROW_MULTIPLE = 16


Member: TypeAlias = tuple[Work, Block, int]
"""A work, its block in a pass, and the slot of its adapter."""


def passes_of(blocks: Sequence[Sequence[Block]], budget: int) -> Iterator[list[tuple[int, Block]]]:
    """Passes of at most one block of each policy, at most `budget` tokens unless one block alone is larger.

    Args:
        blocks: For each policy its blocks in order.
        budget: Tokens of a pass.

    Yields:
        Pairs of the policy's index and its block.
    """
    left = [list(reversed(own)) for own in blocks]
    while any(left):
        members: list[tuple[int, Block]] = []
        tokens = 0
        for index, own in enumerate(left):
            if own and (not members or tokens + len(own[-1]) <= budget):
                members.append((index, own.pop()))
                tokens += len(members[-1][1])
        yield members


def run_pass(
    model: PreTrainedModel,
    lora: MultiLoraModel | None,
    members: Sequence[Member],
    *,
    backward: bool,
) -> None:
    """One pass over blocks of different policies, and back.

    Args:
        model: The model that computes.
        lora: Its adapters, where it holds any.
        members: Who takes part.
        backward: Whether gradients are added to the policies' parameters.
    """
    counts = [len(block) for _, block, _ in members]
    padding = -sum(counts) % ROW_MULTIPLE
    slots = [slot for _, _, slot in members]
    using = lora.using([*slots, NO_ADAPTER], tokens_per_row=[*counts, padding]) if lora else contextlib.nullcontext()
    remember = backward and any(work.loss.gradient_checkpointing for work, _, _ in members)
    precision = members[0][0].policy.computing()  # policies that share a pass have the base's own
    with torch.set_grad_enabled(backward), using, precision, packed(model), recomputing(model, remember):
        hidden_PH = _hidden(model, [block for _, block, _ in members], padding)
        losses: list[Tensor] = []
        scores = _scores(members, hidden_PH)
        for (work, block, _), places_PH, found in zip(members, hidden_PH, scores, strict=True):
            loss = work.take(*found, block.slots_N, work.values(places_PH, block.distributions_N))
            losses += [] if loss is None else [loss]
        if losses:
            # every policy's share has gradient 1, so a sum that isn't finite spoils nobody's
            torch.stack(losses).sum().backward()


def _hidden(model: PreTrainedModel, blocks: Sequence[Block], padding: int) -> list[Tensor]:
    """The last hidden states at each block's scored places."""
    device = next(model.parameters()).device
    tail = torch.zeros(padding, dtype=torch.long)
    spans = spans_of([bucket for block in blocks for bucket in block.buckets], model.dtype, device)
    hidden_TH = model.get_decoder()(
        input_ids=torch.cat([*(block.tokens_T for block in blocks), tail])[None].to(device),
        position_ids=torch.cat([*(block.positions_T for block in blocks), tail])[None].to(device),
        use_cache=False,
        spans=spans,
    ).last_hidden_state[0]
    found: list[Tensor] = []
    first = 0
    for block in blocks:
        found.append(hidden_TH.index_select(0, (block.places_P + first).to(device)))
        first += len(block)
    return found


def _scores(members: Sequence[Member], hidden: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Log-probs and entropies of each block's targets; a head that isn't trained is read once for all."""
    found: dict[int, tuple[Tensor, Tensor]] = {}
    heads = [output_head(work.policy.model) for work, _, _ in members]
    frozen = [index for index, head in enumerate(heads) if is_frozen(head)]
    # a head that isn't trained is the base's own, whoever's module it is
    groups = [frozen] if frozen else []
    groups += [[index] for index in range(len(members)) if index not in frozen]
    for group in groups:
        pairs = [members[index][:2] for index in group]
        scores = _head_scores(heads[group[0]], pairs, [hidden[index] for index in group])
        found |= dict(zip(group, scores, strict=True))
    return [found[index] for index in range(len(members))]


def output_head(model: PreTrainedModel) -> nn.Module:
    """What gives logits.

    Raises:
        ModelError: The model has no such thing.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise ModelError(f"{type(model).__name__} has no output head; a causal language model is needed")
    return head


def _head_scores(
    head: nn.Module, pairs: Sequence[tuple[Work, Block]], hidden: Sequence[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """What one head gives for some blocks, each block's targets by themselves."""
    device = hidden[0].device
    counts = [rows.shape[0] for rows in hidden]
    padding = -sum(counts) % ROW_MULTIPLE
    blocks = [block for _, block in pairs]
    firsts = accumulate(counts[:-1], initial=0)
    distributions = [block.distributions_N + first for block, first in zip(blocks, firsts, strict=True)]
    logprobs_N, entropy_P = head_scores(
        head,
        torch.cat([*hidden, hidden[0].new_zeros(padding, hidden[0].shape[1])]),
        torch.cat([*(block.temperatures_P for block in blocks), torch.ones(padding)]).to(device),
        torch.cat(distributions).to(device),
        torch.cat([block.targets_N for block in blocks]).to(device),
        entropy_gradient=any(work.loss.entropy_coefficient != 0 for work, _ in pairs),
    )
    logprobs = logprobs_N.split([block.targets_N.shape[0] for block in blocks])
    return [(own_N, entropy_P[places_N.to(device)]) for own_N, places_N in zip(logprobs, distributions, strict=True)]


@contextlib.contextmanager
def recomputing(model: PreTrainedModel, wanted: bool) -> Iterator[None]:
    """Keep only what enters each layer, and compute the rest again in the backward pass."""
    if not wanted:
        yield
        return
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    # transformers recomputes in training mode only; the modules within stay in evaluation mode
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
        model.gradient_checkpointing_disable()


def run_alone(
    work: Work, blocks: Sequence[Block], *, backward: bool, proceed: Callable[[], None]
) -> ForwardBackwardResult:
    """All passes of a policy that has a whole model to itself."""
    for block in blocks:
        proceed()
        run_pass(work.policy.model, None, [(work, block, NO_ADAPTER)], backward=backward)
    return work.result()


def run_joint(
    lora: MultiLoraModel,
    works: Sequence[Work],
    blocks: Sequence[Sequence[Block]],
    *,
    backward: bool,
    proceed: Callable[[], None],
) -> list[ForwardBackwardResult]:
    """All passes of policies whose adapters one model can hold side by side.

    Args:
        lora: The model.
        works: The policies' batches.
        blocks: Each policy's blocks.
        backward: Whether gradients are added to the policies' parameters.
        proceed: Called before each pass; what it raises ends the passes.
    """
    budget = max(work.loss.micro_batch_tokens for work in works)
    adapters = [adapter for work in works if (adapter := work.policy.adapter) is not None]
    with lora.attached(adapters) as slots:
        for members in passes_of(blocks, budget):
            proceed()
            batch = [(works[index], block, slots[index]) for index, block in members]
            run_pass(lora.model, lora, batch, backward=backward)
    return [work.result() for work in works]
