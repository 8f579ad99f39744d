"""How the rows of a step are grouped into as few attention calls as pays, and what each of those reads.

Scores are masked up to a number of keys that doesn't change the order in which the matrix library adds, so that a
row's result doesn't depend on how long the sequences are that share its call.

Shape suffixes: B sequences of a run, T new rows of each, M query rows of a key head, L keys, G key heads, D width of a
head.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from tinker_actors.sampling.kv_pool import KVPool

LINE = 32
"""Keys that attention with bounded scores adds up at a time."""
BLOCK = 512
"""Keys that the fused kernel works on at a time."""
_STEP = 16  # floats of a vector register: what is left over of them is added in another order
_WHOLE = 192  # keys that a product sums up in one piece on any processor; with AVX-512 it would be 256
_PIECE = 128  # rows of a prompt that are attended for at once: the ones before needn't read the keys of those behind


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
        masks: What `mask` gave, by what it was asked.
        views: What `read` gave, by what it was asked.
    """

    row: int
    count: int
    start: int
    size: int
    stride: int
    helds: list[int]
    keys: int
    masks: dict[tuple[int | None, int, int, int, torch.dtype], Tensor] = field(default_factory=dict)
    views: dict[tuple[int, int], tuple[list[Tensor], list[Tensor]]] = field(default_factory=dict)

    def low(self, window: int | None) -> int:
        """The first key that one of the rows sees, or one before it."""
        return 0 if window is None else max(0, min(self.helds) - window + 1) // BLOCK * BLOCK

    def read(self, pool: KVPool, low: int, keys: int) -> tuple[list[Tensor], list[Tensor]]:
        """The keys and values from one key to another, for each layer a view of shape (B, G, L, D)."""
        found = self.views.get((low, keys))
        if found is None:
            found = self.views[low, keys] = pool.read(self.start + low, len(self.helds), self.stride, keys - low)
        return found

    def mask(self, window: int | None, groups: int, rows: int, keys: int, pool: KVPool) -> Tensor:
        """What is added to the scores from the first key on, shape (B, 1, rows, L).

        Args:
            window: Keys that a row sees, itself included; None for all before it.
            groups: Query heads per key head.
            rows: Query rows of a key head, with what fills them up.
            keys: The key at which reading ends.
            pool: Its dtype and device are the mask's.
        """
        key = (window, groups, rows, keys, pool.dtype)
        found = self.masks.get(key)
        if found is None:
            found = self.masks[key] = self._mask(window, groups, rows, keys, pool)
        return found

    def _mask(self, window: int | None, groups: int, rows: int, keys: int, pool: KVPool) -> Tensor:
        positions_bt = torch.tensor(self.helds)[:, None] + torch.arange(self.count)
        keys_l = torch.arange(self.low(window), keys)
        seen_btl = keys_l <= positions_bt[:, :, None]
        if window is not None:
            seen_btl &= keys_l > positions_bt[:, :, None] - window
        mask_btl = torch.zeros(seen_btl.shape, dtype=pool.dtype).masked_fill_(~seen_btl, -torch.inf).to(pool.device)
        if self.count == 1:
            return mask_btl[:, None].expand(-1, 1, rows, -1)
        return F.pad(mask_btl.repeat(1, groups, 1), (0, 0, 0, rows - groups * self.count))[:, None]


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

    A block of 512 is summed up in pieces of 256, or of 192 on a processor without AVX-512; a shorter one that is longer
    than such a piece in two equal ones.
    """
    whole, rest = divmod(tokens, BLOCK)
    return whole * BLOCK + (-(-rest // _STEP) * _STEP if rest <= _WHOLE else BLOCK)


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
