"""Attention of many sequences at once over the pool of keys and values, behind transformers' attention interface.

A row's result depends on its own sequence alone, to the last bit: `runs` sees to the number of keys, and every product
has enough rows for it to take the same path for one row as for many.

Shape suffixes: T rows of the step, B sequences of a run, M query rows of a key head, L keys, H query heads, G key
heads, D width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinker_actors.errors import ModelError
from tinker_actors.sampling.kv_pool import KVPool
from tinker_actors.sampling.runs import LINE, Run

NAME = "tinker_actors_pool"
_IGNORED = frozenset({"position_ids", "cache_position", "use_cache", "output_attentions", "is_causal", "target_dtype"})


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
        self.shapes: dict[int, tuple[int, int]] | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        assert self.step is not None
        return self.step.pool.dtype

    def attend(
        self,
        layer: int,
        query_thd: Tensor,
        kept_tgd: Tensor,
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
            kept_tgd: Keys of the same rows, and behind them their values: shape (T, 2G, D).
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
            self.shapes[layer] = (kept_tgd.shape[1] // 2, kept_tgd.shape[2])
        pool, rows = step.pool, step.rows
        answer_thd = query_thd.new_empty(query_thd.shape, dtype=dtype or query_thd.dtype)
        if rows < answer_thd.shape[0]:
            answer_thd[rows:].zero_()
            kept_tgd = kept_tgd[:rows]
        pool.write(layer, step.places_t, kept_tgd.to(pool.dtype))
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
    kept_tgd = torch.cat([key[0], value[0]]).transpose(0, 1)
    query_thd = query[0].transpose(0, 1)
    answer_thd = holder.attend(layer, query_thd, kept_tgd, scaling=scaling, window=sliding_window, softcap=softcap)
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
    key_heads = pool.shape.heads
    groups = heads // key_heads
    wanted = groups * count
    query = query_thd.narrow(0, run.row, batch * count)
    if count == 1:
        query_bgmd = query.view(batch, key_heads, groups, width)
    else:
        query = query.view(batch, count, key_heads, groups, width)
        query_bgmd = query.permute(0, 2, 3, 1, 4).reshape(batch, key_heads, wanted, width)
    rows, keys = _padded(wanted, width, query_thd.dtype), run.keys
    if softcap is not None:
        rows, keys = -(-wanted // LINE) * LINE, -(-keys // LINE) * LINE
    if rows > wanted:
        query_bgmd = F.pad(query_bgmd, (0, 0, 0, rows - wanted))
    keys_nbgld, values_nbgld = run.read(pool, run.low(window), keys)
    mask = run.mask(window, groups, rows, keys, pool)
    if softcap is None:
        answer = F.scaled_dot_product_attention(
            query_bgmd, keys_nbgld[layer], values_nbgld[layer], attn_mask=mask, scale=scaling
        )
    else:
        scale = width**-0.5 if scaling is None else scaling
        answer = _capped(query_bgmd, keys_nbgld[layer], values_nbgld[layer], mask, scale / softcap, softcap)
    if rows > wanted:
        answer = answer[:, :, :wanted]
    target = answer_thd.narrow(0, run.row, batch * count)
    if count == 1:
        target.view(batch, key_heads, groups, width).copy_(answer)
    else:
        answer = answer.reshape(batch, key_heads, groups, count, width).permute(0, 3, 1, 2, 4)
        target.view(batch, count, key_heads, groups, width).copy_(answer)


def _capped(
    query_bgmd: Tensor, keys_bgld: Tensor, values_bgld: Tensor, mask_b1ml: Tensor, scale: float, cap: float
) -> Tensor:
    """Attention with bounded scores in float32: products of 32 queries and 32 keys, added up key by key.

    Every product has one shape, and keys that are masked add zeros at an end: so neither the number of queries nor
    that of keys changes a bit.
    """
    batch, heads, rows, width = query_bgmd.shape
    pieces, blocks = rows // LINE, keys_bgld.shape[2] // LINE
    queries = query_bgmd.float().reshape(-1, LINE, width)

    def block(tensor_bgld: Tensor, number: int) -> Tensor:
        part = tensor_bgld.narrow(2, number * LINE, LINE).float()[:, :, None]
        return part.expand(-1, -1, pieces, -1, -1).reshape(-1, LINE, part.shape[-1])

    scores = torch.cat([torch.bmm(queries, block(keys_bgld, n).transpose(1, 2)) for n in range(blocks)], dim=-1)
    scores = scores.mul_(scale).tanh_().mul_(cap).view(batch, heads, rows, -1).add_(mask_b1ml)
    weights = (scores - scores.amax(-1, keepdim=True)).exp_()
    parts = weights.view(-1, LINE, blocks, LINE)
    answer = queries.new_zeros(queries.shape[0], LINE, values_bgld.shape[3])
    for number in range(blocks):
        answer += torch.bmm(parts[:, :, number], block(values_bgld, number))
    total = weights.view(batch, heads, rows, blocks, LINE).sum(-1).cumsum(-1)[..., -1:]
    return (answer.view(batch, heads, rows, -1) / total).to(values_bgld.dtype)


def _padded(rows: int, width: int, dtype: torch.dtype) -> int:
    """Query rows for which every product of the fused kernel takes the path that it takes for many rows.

    The kernel cuts queries in pieces of 32, 64 or 256; in float32 a short piece is computed otherwise than a long one,
    in bfloat16 only a piece of fewer than four rows is.
    """
    piece = 32 if rows < 192 else 64 if rows < 768 else 256
    if dtype == torch.bfloat16:
        rest = rows % piece
        return rows + max(0, 4 - rest) if rest else rows
    least = 8 if width <= 128 else 16
    if rows <= 32:
        return max(rows, least)
    return -(-rows // piece) * piece
