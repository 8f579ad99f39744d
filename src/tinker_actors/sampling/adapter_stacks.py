"""The adapters of one model's layers, stacked so that rows of many adapters share two products per layer.

Rows are cut into tiles of four rows of one adapter. A product works on whole tiles only, each a small product of its
own of always the same shape: so a row's result depends on the row and its adapter alone, whatever shares the step.
Adapters lie in stacks by rank (8, 16, 32, ...), so that it doesn't depend on the rank of others either.

Shape suffixes: T rows of the step, N rows gathered in tiles, C tiles, I inputs, O outputs, R rank, S adapters of a
stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinker_actors.kernels import RowPlan

TILE = 4
_LEAST_RANK = 8


def rank_class(rank: int) -> int:
    """Rank of the stack that an adapter of this rank belongs to."""
    size = _LEAST_RANK
    while size < rank:
        size *= 2
    return size


@dataclass(frozen=True, slots=True)
class Place:
    """Where an adapter lies: in the stack of a rank class, at an index."""

    rank: int
    index: int


@dataclass(frozen=True, slots=True)
class Call:
    """One product over consecutive tiles: tile `first + i` with adapter `low + i`, or all with `low`."""

    first: int
    count: int
    low: int
    one: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePlan:
    """How the rows of one rank class are computed.

    Attributes:
        rank: The class.
        gather_n: For each row of each tile a row of the step; rows that fill up a tile repeat another one.
        rows: The rows of the step that have an adapter of the class; None if all have, in order.
        source: For each of them its row among the tiles' rows; None if they are these, in order.
        calls: The products.
        whole: Whether every tile row is a row of the step, in order.
    """

    rank: int
    gather_n: Tensor
    rows: Tensor | None
    source: Tensor
    calls: tuple[Call, ...]
    whole: bool


def plan_tiles(slots: Sequence[int], places: dict[int, Place]) -> list[TilePlan]:
    """Plans for the rows of a step, one for each rank class that occurs.

    Args:
        slots: The adapter of each row, negative for none.
        places: Where adapters lie.
    """
    plan = RowPlan.build(slots)
    classes: dict[int, list[tuple[int, list[int]]]] = {}
    for segment in plan.segments:
        place = places[segment.slot]
        rows = plan.order[segment.first : segment.first + segment.count].tolist()
        classes.setdefault(place.rank, []).append((place.index, rows))
    return [_plan_class(rank, sorted(parts), len(slots)) for rank, parts in sorted(classes.items())]


def _plan_class(rank: int, parts: list[tuple[int, list[int]]], total: int) -> TilePlan:
    gather: list[int] = []
    rows: list[int] = []
    source: list[int] = []
    calls: list[Call] = []

    def add(tile_rows: Sequence[int]) -> None:
        for row in tile_rows:
            rows.append(row)
            source.append(len(gather))
            gather.append(row)
        gather.extend([parts[0][1][0]] * (TILE - len(tile_rows)))

    left = {index: [own[i : i + TILE] for i in range(0, len(own), TILE)] for index, own in parts}
    while left:
        few = sorted(left)
        low, span = few[0], few[-1] - few[0] + 1
        # reading a stack's neighbours for nothing costs less than a call for each adapter, up to a point
        if len(few) > 1 and span <= 2 * len(few):
            calls.append(Call(len(gather) // TILE, span, low, False))
            for index in range(low, low + span):
                tiles = left.get(index)
                add(tiles.pop(0) if tiles else ())
                if tiles is not None and not tiles:
                    del left[index]
            continue
        tiles = left.pop(low)
        calls.append(Call(len(gather) // TILE, len(tiles), low, True))
        for tile in tiles:
            add(tile)
    order = sorted(range(len(rows)), key=rows.__getitem__)
    rows, source = [rows[i] for i in order], [source[i] for i in order]
    everything = len(rows) == total
    return TilePlan(
        rank=rank,
        gather_n=torch.tensor(gather),
        rows=None if everything else torch.tensor(rows),
        source=torch.tensor(source),
        calls=tuple(calls),
        whole=everything and gather == list(range(total)),
    )


class LayerStacks:
    """The stacks of one layer, or of several that read the same input.

    Args:
        inputs: Width of the input.
        outputs: Width of each layer's output.
    """

    def __init__(self, inputs: int, outputs: Sequence[int]) -> None:
        self._inputs, self._outputs = inputs, tuple(outputs)
        self._stacks: dict[int, tuple[Tensor, Tensor]] = {}
        self._held: dict[int, set[int]] = {}

    def put(self, place: Place, parts: Sequence[tuple[Tensor, Tensor, float] | None]) -> None:
        """Install an adapter: A [rank, in], B [out, rank] and the scale for each layer that it adapts."""
        self.clear(place)
        if not any(parts):
            return
        a_sir, b_sro = self._room(place)
        self._held.setdefault(place.rank, set()).add(place.index)
        row = 0
        for number, part in enumerate(parts):
            if part is not None:
                a_ri, b_or, scale = part
                at = slice(number * place.rank, number * place.rank + a_ri.shape[0])
                a_sir[place.index, :, at] = a_ri.t()
                b_sro[place.index, at, row : row + self._outputs[number]] = b_or.t() * scale
            row += self._outputs[number]

    def clear(self, place: Place) -> None:
        """Take an adapter out."""
        held = self._held.get(place.rank)
        if held is None or place.index not in held:
            return
        held.discard(place.index)
        if not held:
            del self._held[place.rank], self._stacks[place.rank]
            return
        for tensor in self._stacks[place.rank]:
            tensor[place.index].zero_()

    def add(self, y_to: Tensor, x_ti: Tensor, plan: TilePlan) -> None:
        """Add each row's adapter to its output, in place, in float32 with one rounding."""
        stack = self._stacks.get(plan.rank)
        if stack is None:
            return
        a_sir, b_sro = stack
        capacity = a_sir.shape[0]
        x_ni = x_ti if plan.whole else x_ti.index_select(0, plan.gather_n)
        x_cki = x_ni.float().view(-1, TILE, x_ni.shape[1])
        parts: list[Tensor] = []
        for call in plan.calls:
            x = x_cki.narrow(0, call.first, call.count)
            high = min(call.low + (1 if call.one else call.count), capacity)
            if call.low >= capacity:  # this layer isn't adapted by so late an adapter
                parts.append(x.new_zeros(call.count, TILE, b_sro.shape[2]))
                continue
            a, b = a_sir[call.low : high], b_sro[call.low : high]
            if call.one:
                a, b = a.expand(call.count, -1, -1), b.expand(call.count, -1, -1)
            elif high < call.low + call.count:
                made = torch.bmm(torch.bmm(x[: high - call.low], a), b)
                parts.append(torch.cat([made, x.new_zeros(call.count - made.shape[0], TILE, made.shape[2])]))
                continue
            parts.append(torch.bmm(torch.bmm(x, a), b))
        made_no = (parts[0] if len(parts) == 1 else torch.cat(parts)).view(-1, b_sro.shape[2])
        if plan.whole:
            y_to.add_(made_no)
            return
        made_to = made_no.index_select(0, plan.source)
        if plan.rows is None:
            y_to.add_(made_to)
        else:
            y_to.index_copy_(0, plan.rows, y_to.index_select(0, plan.rows).add_(made_to))

    def _room(self, place: Place) -> tuple[Tensor, Tensor]:
        a, b = self._stacks.get(place.rank, (None, None))
        size = 0 if a is None else a.shape[0]
        if place.index >= size:
            grown = max(place.index + 1, 2 * size)
            width = place.rank * len(self._outputs)
            a_new = torch.zeros(grown, self._inputs, width)
            b_new = torch.zeros(grown, width, sum(self._outputs))
            if a is not None and b is not None:
                a_new[:size], b_new[:size] = a, b
            self._stacks[place.rank] = (a_new, b_new)
        return self._stacks[place.rank]
