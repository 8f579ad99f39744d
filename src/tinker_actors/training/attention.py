# ruff: noqa: N803, N806 (tensor names bear shape suffixes)
"""Attention over a row of packed segments, each within itself, through transformers' attention interface.

Shape suffixes: T tokens of the row, B segments of a bucket, L positions of its longest, H heads, D a head's width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from tinker_actors.training.packing import Bucket

NAME = "tinker_actors_packed"
"""The implementation's name in transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A bucket's rows, ready for the device.

    Attributes:
        first: Where they begin.
        count: How many there are.
        shape: B and L.
        keep: Places of the rows among B * L padded ones; None if nothing is padded.
        mask: (B, 1, L, L), numbers to be added to the scores; None for causal attention.
    """

    first: int
    count: int
    shape: tuple[int, int]
    keep: Tensor | None
    mask: Tensor | None

    def padded(self, rows_THD: Tensor) -> Tensor:
        """The bucket's rows as (B, H, L, D); padding is 0."""
        rows = rows_THD.narrow(0, self.first, self.count)
        if self.keep is not None:
            empty = rows.new_zeros(self.shape[0] * self.shape[1], *rows.shape[1:])
            rows = empty.index_copy(0, self.keep, rows)
        return rows.unflatten(0, self.shape).transpose(1, 2)

    def rows(self, padded_BHLD: Tensor) -> Tensor:
        """The rows of (B, H, L, D), padding left out, shape (count, H, D)."""
        rows = padded_BHLD.transpose(1, 2).flatten(0, 1)
        return rows if self.keep is None else rows.index_select(0, self.keep)


def lowest(dtype: torch.dtype) -> float:
    """A score that hides a position, finite in this dtype and in bf16, in which it may be added."""
    return max(torch.finfo(dtype).min, torch.finfo(torch.bfloat16).min)


def spans_of(buckets: Sequence[Bucket], dtype: torch.dtype, device: torch.device) -> list[Span]:
    """Buckets that follow one another from row 0 on."""
    spans: list[Span] = []
    first = 0
    for bucket in buckets:
        count, width = sum(bucket.lengths), max(bucket.lengths)
        keep = mask = None
        if min(bucket.lengths) < width:
            starts = torch.arange(len(bucket.lengths)) * width
            keep = torch.cat([torch.arange(n) + at for n, at in zip(bucket.lengths, starts.tolist(), strict=True)])
            keep = keep.to(device)
        if bucket.sees_BLL is not None:
            hidden = torch.full((), lowest(dtype), dtype=dtype)
            mask = torch.where(bucket.sees_BLL, torch.zeros((), dtype=dtype), hidden)[:, None].to(device)
        spans.append(Span(first=first, count=count, shape=(len(bucket.lengths), width), keep=keep, mask=mask))
        first += count
    return spans


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    spans: Sequence[Span],
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer; rows beyond the spans are padding and come out as 0.

    Args:
        module: The attention layer.
        query: (1, heads, T, D); key and value likewise, with as many heads or a divisor of them.
        key: Keys.
        value: Values.
        attention_mask: Of no meaning here.
        scaling: Factor of the scores.
        spans: Given to the model's forward call, which hands it through.

    Returns:
        (1, T, heads, D), and no weights.
    """
    grouped = query.shape[1] != key.shape[1]
    parts = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    found: list[Tensor] = []
    for span in spans:
        q_BHLD, k_BHLD, v_BHLD = (span.padded(rows) for rows in parts)
        out_BHLD = scaled_dot_product_attention(
            q_BHLD,
            k_BHLD,
            v_BHLD,
            attn_mask=span.mask,
            is_causal=span.mask is None,
            scale=scaling,
            enable_gqa=grouped,
        )
        found.append(span.rows(out_BHLD))
    missing = query.shape[2] - sum(span.count for span in spans)
    if missing:
        found.append(query.new_zeros(missing, query.shape[1], value.shape[3]))
    return torch.cat(found)[None], None


AttentionInterface.register(NAME, packed_attention)


@contextlib.contextmanager
def packed(model: PreTrainedModel) -> Iterator[None]:
    """Let a model's layers attend within the spans of its forward calls, for a while."""
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before
