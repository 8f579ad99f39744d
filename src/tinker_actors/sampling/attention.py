"""Attention of many sequences at once over the pool of keys and values, behind transformers' attention interface.

A row's result depends on its own sequence alone, to the last bit: scores are masked up to a number of keys that
doesn't change the order in which the matrix library adds, and every product has enough rows for it to take the same
path for one row as for many.

Shape suffixes: T rows of the step, B sequences of a run, M query rows of a key head, L keys, H query heads, G key
heads, D width of a head.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinker_actors.errors import ModelError
from tinker_actors.sampling.kv_pool import KVPool

NAME = "tinker_actors_pool"
_LINE = 32
_BLOCK = 512  # keys that the fused kernel works on at a time
_HALF = 256  # keys up to which a product of them is summed up in one piece
_PIECE = 128  # rows of a prompt that are attended for at once: the ones before needn't read the keys of those behind
_IGNORED = frozenset({"position_ids", "cache_position", "use_cache", "output_attentions", "is_causal", "target_dtype"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """New rows of one sequence in a step.

    Attributes:
        start: Where its extent begins in the pool.
        size: Places of the extent.
        held: Tokens whose keys are there already.
        count: New tokens.
    """

    start: int
    size: int
    held: int
    count: int


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """Sequences with equally many new rows whose extents lie at equal distances.

    Attributes:
        row: First row in the step.
        count: Rows of each sequence.
        start: First place of the first sequence.
        size: Places of each sequence's extent.
        stride: Places from one sequence to the next.
        helds: Tokens held by each.
        keys: Keys that are read, L.
        masks: By window and query heads per key head.
    """

    row: int
    count: int
    start: int
    size: int
    stride: int
    helds: list[int]
    keys: int
    masks: dict[tuple[int | None, int, int, torch.dtype], tuple[int, Tensor]] = field(default_factory=dict)

    def mask(self, window: int | None, groups: int, rows: int, dtype: torch.dtype) -> tuple[int, Tensor]:
        """The first key that matters, and what is added to the scores from there on, shape (B, 1, rows, L)."""
        key = (window, groups, rows, dtype)
        if key not in self.masks:
            positions_bt = torch.tensor(self.helds)[:, None] + torch.arange(self.count)
            low = 0 if window is None else max(0, min(self.helds) - window + 1) // _BLOCK * _BLOCK
            keys_l = torch.arange(low, self.keys)
            seen_btl = keys_l <= positions_bt[:, :, None]
            if window is not None:
                seen_btl &= keys_l > positions_bt[:, :, None] - window
            mask_btl = torch.zeros(seen_btl.shape, dtype=dtype).masked_fill_(~seen_btl, -torch.inf)
            if self.count == 1:
                mask = mask_btl[:, None].expand(-1, 1, rows, -1)
            else:
                mask = F.pad(mask_btl.repeat(1, groups, 1), (0, 0, 0, rows - groups * self.count))[:, None]
            self.masks[key] = (low, mask)
        return self.masks[key]


def runs_of(spans: Sequence[Span]) -> list[Run]:
    """Group spans, in the order of their rows, into as few attention calls as pays."""
    runs: list[Run] = []
    row = 0
    for span in itertools.chain.from_iterable(map(_pieces, spans)):
        keys = _keys(span.held + span.count)
        last = runs[-1] if runs else None
        if last is not None and _joins(span, keys, last):
            if len(last.helds) == 1:
                last.stride = span.start - last.start
            last.helds.append(span.held)
            last.keys = max(last.keys, keys)
        else:
            runs.append(
                Run(
                    row=row,
                    count=span.count,
                    start=span.start,
                    size=span.size,
                    stride=0,
                    helds=[span.held],
                    keys=keys,
                )
            )
        row += span.count
    return runs


def _pieces(span: Span) -> list[Span]:
    return [
        Span(start=span.start, size=span.size, held=span.held + first, count=min(_PIECE, span.count - first))
        for first in range(0, span.count, _PIECE)
    ]


def _keys(tokens: int) -> int:
    """Keys to read for so many tokens: what is masked adds zeros, but may change how the sum is cut into pieces.

    A block of 512 is summed up in two pieces of 256, a shorter one of more than 256 in two equal ones.
    """
    whole, rest = divmod(tokens, _BLOCK)
    return whole * _BLOCK + (-(-rest // _LINE) * _LINE if rest <= _HALF else _BLOCK)


def _joins(span: Span, keys: int, run: Run) -> bool:
    if span.count != run.count or span.size != run.size:
        return False
    distance = span.start - (run.start + run.stride * (len(run.helds) - 1))
    if distance <= 0 or (len(run.helds) > 1 and distance != run.stride):
        return False
    # all sequences of a run read as many keys as the longest: where that costs more than a call, begin another
    longest = max(keys, run.keys)
    waste = longest * (len(run.helds) + 1) - run.keys * len(run.helds) - keys
    return waste * run.count <= 256


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """What the attention layers need to know of the forward pass under way.

    Attributes:
        pool: Where keys and values are.
        places_t: The place of each row, shape (T,).
        runs: How rows are grouped.
        rows: Rows that belong to sequences; what comes after them is padding.
        order_t: Where layers see the rows in another order than that of the runs: for each the row that it is there.
        back_t: For each row of the runs where layers see it; made from `order_t`.
    """

    pool: KVPool
    places_t: Tensor
    runs: list[Run]
    rows: int
    order_t: Tensor | None = None
    back_t: Tensor | None = None

    def __post_init__(self) -> None:
        if self.order_t is not None:
            self.back_t = self.order_t.argsort()


class StepHolder:
    """Where one model's attention layers find the step under way.

    Attributes:
        step: The step; None between steps.
        shapes: Set while a model is tried out: what each layer would keep, by its index.
    """

    def __init__(self) -> None:
        self.step: Step | None = None
        self.shapes: dict[int, tuple[int, int, int]] | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        assert self.step is not None
        return self.step.pool.dtype

    def attend(
        self,
        layer: int,
        query_thd: Tensor,
        keys_tgd: Tensor,
        values_tgd: Tensor,
        *,
        scaling: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Write the new keys and values of a layer, then attend within each sequence, in the pool's dtype.

        Args:
            layer: Its index.
            query_thd: Queries of all rows, padding included.
            keys_tgd: Keys of the same rows.
            values_tgd: Their values.
            scaling: Factor of the scores; one over the root of the width by default.
            window: Keys that a query sees, itself included; None for all before it.
            softcap: Bound of the scores, None for none.
            dtype: Of the answer; by default the queries'.

        Returns:
            Shape (T, H, D); zero for padding.
        """
        step = self.step
        assert step is not None
        if self.shapes is not None:
            self.shapes[layer] = (keys_tgd.shape[1], keys_tgd.shape[2], values_tgd.shape[2])
        pool, rows = step.pool, step.rows
        shape = (*query_thd.shape[:2], values_tgd.shape[2])
        answer_thd = query_thd.new_empty(shape, dtype=dtype or query_thd.dtype)
        if rows < shape[0]:
            answer_thd[rows:].zero_()
        pool.write(layer, step.places_t, keys_tgd[:rows].to(pool.dtype), values_tgd[:rows].to(pool.dtype))
        query_thd = query_thd.to(pool.dtype)
        if step.back_t is not None:
            query_thd = query_thd.index_select(0, step.back_t)
        for run in step.runs:
            _attend(answer_thd, query_thd, run, pool, layer, scaling, window, softcap)
        return answer_thd if step.order_t is None else answer_thd.index_select(0, step.order_t)


def install(model: nn.Module, holder: StepHolder) -> int:
    """Make a model's attention read the pool; how many layers do.

    Raises:
        ModelError: The model doesn't use transformers' attention interface.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, pool_attention)
    config: Any = model.config
    text = config.get_text_config()
    layers = 0
    for module in model.modules():
        if getattr(module, "config", None) is text and hasattr(module, "layer_idx") and hasattr(module, "scaling"):
            module.__dict__["kv_holder"] = holder
            layers += 1
    if layers != text.num_hidden_layers:
        raise ModelError(
            f"{type(model).__name__} has {text.num_hidden_layers} layers, of which {layers} attend through "
            "transformers' attention interface; all are needed to sample"
        )
    text._attn_implementation = NAME
    return layers


def pool_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Transformers' attention function: write the new keys and values, then attend within each sequence.

    Args:
        module: The attention layer.
        query: Shape (1, H, T, D).
        key: Shape (1, G, T, D).
        value: As `key`.
        attention_mask: Of no meaning: the step knows who sees what.
        scaling: Factor of the scores.
        dropout: 0.
        sliding_window: Keys that a query sees, itself included; None for all before it.
        softcap: Bound of the scores (Gemma 2), None for none.
        others: Anything else that the layer gives.

    Returns:
        Shape (1, T, H, D), and no weights.

    Raises:
        ModelError: The layer asks for something that isn't computed here.
    """
    del attention_mask, dropout
    if unknown := [name for name, given in others.items() if name not in _IGNORED and given is not None]:
        raise ModelError(f"{type(module).__name__} attends with {', '.join(unknown)}, which is not supported")
    holder: StepHolder = module.__dict__["kv_holder"]
    layer: int = module.layer_idx  # pyright: ignore[reportAssignmentType]
    rows = (part[0].transpose(0, 1) for part in (query, key, value))
    answer_thd = holder.attend(layer, *rows, scaling=scaling, window=sliding_window, softcap=softcap)
    return answer_thd[None], None


def _attend(
    answer_thd: Tensor,
    query_thd: Tensor,
    run: Run,
    pool: KVPool,
    layer: int,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> None:
    _, heads, width = query_thd.shape
    count, batch = run.count, len(run.helds)
    key_heads = pool.layers[layer].heads
    groups = heads // key_heads
    wanted = groups * count
    rows = _padded(wanted, width, query_thd.dtype) if softcap is None else -(-wanted // _LINE) * _LINE
    low, mask = run.mask(window, groups, rows, query_thd.dtype)
    query = query_thd.narrow(0, run.row, batch * count).view(batch, count, key_heads, groups, width)
    query_bgmd = query.permute(0, 2, 3, 1, 4).reshape(batch, key_heads, wanted, width)
    if rows > wanted:
        query_bgmd = F.pad(query_bgmd, (0, 0, 0, rows - wanted))
    keys, values = _view(pool.keys[layer], run, low), _view(pool.values[layer], run, low)
    if softcap is None:
        answer = F.scaled_dot_product_attention(query_bgmd, keys, values, attn_mask=mask, scale=scaling)
    else:
        scale = width**-0.5 if scaling is None else scaling
        answer = _capped(query_bgmd, keys, values, mask, scale / softcap, softcap)
    answer = answer[:, :, :wanted].view(batch, key_heads, groups, count, -1).permute(0, 3, 1, 2, 4)
    answer_thd.narrow(0, run.row, batch * count).view(batch, count, key_heads, groups, -1).copy_(answer)


def _capped(
    query_bgmd: Tensor, keys_bgld: Tensor, values_bgld: Tensor, mask_b1ml: Tensor, scale: float, cap: float
) -> Tensor:
    """Attention with bounded scores in float32: products of 32 queries and 32 keys, added up key by key.

    Every product has one shape, and keys that are masked add zeros at an end: so neither the number of queries nor
    that of keys changes a bit.
    """
    batch, heads, rows, width = query_bgmd.shape
    pieces, blocks = rows // _LINE, keys_bgld.shape[2] // _LINE
    queries = query_bgmd.float().reshape(-1, _LINE, width)

    def block(tensor_bgld: Tensor, number: int) -> Tensor:
        part = tensor_bgld.narrow(2, number * _LINE, _LINE).float()[:, :, None]
        return part.expand(-1, -1, pieces, -1, -1).reshape(-1, _LINE, part.shape[-1])

    scores = torch.cat([torch.bmm(queries, block(keys_bgld, n).transpose(1, 2)) for n in range(blocks)], dim=-1)
    scores = scores.mul_(scale).tanh_().mul_(cap).view(batch, heads, rows, -1).add_(mask_b1ml)
    weights = (scores - scores.amax(-1, keepdim=True)).exp_()
    parts = weights.view(-1, _LINE, blocks, _LINE)
    answer = queries.new_zeros(queries.shape[0], _LINE, values_bgld.shape[3])
    for number in range(blocks):
        answer += torch.bmm(parts[:, :, number], block(values_bgld, number))
    total = weights.view(batch, heads, rows, blocks, _LINE).sum(-1).cumsum(-1)[..., -1:]
    return (answer.view(batch, heads, rows, -1) / total).to(values_bgld.dtype)


def _view(tensor_pgd: Tensor, run: Run, low: int) -> Tensor:
    """The run's keys or values, shape (B, G, L, D), without a copy."""
    _, heads, width = tensor_pgd.shape
    place = heads * width
    return tensor_pgd.as_strided(
        (len(run.helds), heads, run.keys - low, width),
        (run.stride * place, width, place, 1),
        (run.start + low) * place,
    )


def _padded(rows: int, width: int, dtype: torch.dtype) -> int:
    """Query rows for which every product of the fused kernel takes the path that it takes for many rows.

    The kernel cuts queries in pieces of 32, 64 or 256; in float32 a short piece is computed otherwise than a long one.
    """
    if dtype == torch.bfloat16:
        return rows
    least = 8 if width <= 128 else 16
    if rows <= 32:
        return max(rows, least)
    piece = 32 if rows < 192 else 64 if rows < 768 else 256
    return -(-rows // piece) * piece
