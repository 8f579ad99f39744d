"""The adapters of one model's layers, stacked so that rows of many adapters share two products per layer.

Rows are cut into tiles of four rows of one adapter. A product works on whole tiles only, each a small product of its
own of always the same shape: so a row's result depends on the row and its adapter alone, whatever shares the step.
Adapters lie in stacks by rank (8, 16, 32, ...), so that it doesn't depend on the rank of others either.

Shape suffixes: T rows of the step, N rows gathered in tiles, C tiles, I inputs, O outputs, R rank, S adapters of a
stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tinker_actors.kernels import RowPlan

TILE = 4
_LEAST_RANK = 8
_WORTH_APART = 1024  # outputs of a layer from which on zeros beside its B cost more than a product of its own


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


def plan_tiles(slots: Sequence[int], places: dict[int, Place], device: torch.device | None = None) -> list[TilePlan]:
    """Plans for the rows of a step, one for each rank class that occurs.

    Args:
        slots: The adapter of each row, negative for none.
        places: Where adapters lie.
        device: Where the rows are.
    """
    plan = RowPlan.build(slots)
    classes: dict[int, list[tuple[int, list[int]]]] = {}
    for segment in plan.segments:
        place = places[segment.slot]
        rows = plan.order[segment.first : segment.first + segment.count].tolist()
        classes.setdefault(place.rank, []).append((place.index, rows))
    return [_plan_class(rank, sorted(parts), len(slots), device) for rank, parts in sorted(classes.items())]


def in_order(plans: Sequence[TilePlan]) -> tuple[list[TilePlan], Tensor | None]:
    """Plans for the rows in the order of their tiles, and that order, where the tiles hold exactly the rows.

    Then no layer has to gather them. Elsewhere, or where they lie so already, the plans as they are and None.
    """
    if len(plans) != 1 or plans[0].whole or plans[0].rows is not None:
        return list(plans), None
    plan = plans[0]
    if len(plan.gather_n) != len(plan.source):
        return list(plans), None
    source = torch.arange(len(plan.source), device=plan.source.device)
    return [replace(plan, source=source, whole=True)], plan.gather_n


def _plan_class(rank: int, parts: list[tuple[int, list[int]]], total: int, device: torch.device | None) -> TilePlan:
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
        # one of as many tiles as there are others has a call of its own: prompts then stay in the order that they have
        most = max(few, key=lambda index: (len(left[index]), -index))
        low, span = few[0], few[-1] - few[0] + 1
        if len(left[most]) >= len(few):
            low, span = most, 1
        # reading a stack's neighbours for nothing costs less than a call for each adapter, up to a point
        if span > 1 and span <= 2 * len(few):
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
        gather_n=torch.tensor(gather, device=device),
        rows=None if everything else torch.tensor(rows, device=device),
        source=torch.tensor(source, device=device),
        calls=tuple(calls),
        whole=everything and gather == list(range(total)),
    )


class LayerStacks:
    """The stacks of one layer, or of several that read the same input.

    Layers share A, each with its columns, and so one product. Small ones share B as well, which is zero between them;
    of large ones each has its own.

    Args:
        inputs: Width of the input.
        outputs: Width of each layer's output.
        device: Where the layers are.
    """

    def __init__(self, inputs: int, outputs: Sequence[int], device: torch.device | None = None) -> None:
        self._inputs, self._outputs, self._device = inputs, tuple(outputs), device
        self._apart = min(outputs) >= _WORTH_APART
        self._stacks: dict[int, tuple[Tensor, list[Tensor]]] = {}
        self._held: dict[int, set[int]] = {}

    def put(self, place: Place, parts: Sequence[tuple[Tensor, Tensor, float] | None]) -> None:
        """Install an adapter: A [rank, in], B [out, rank] and the scale for each layer that it adapts."""
        self.clear(place)
        if not any(parts):
            return
        a_sir, b_sro = self._room(place)
        self._held.setdefault(place.rank, set()).add(place.index)
        column = 0
        for number, part in enumerate(parts):
            if part is not None:
                a_ri, b_or, scale = part
                rank, first = a_ri.shape[0], number * place.rank
                a_sir[place.index, :, first : first + rank] = a_ri.t()
                if self._apart:
                    b_sro[number][place.index, :rank] = b_or.t() * scale
                else:
                    columns = slice(column, column + self._outputs[number])
                    b_sro[0][place.index, first : first + rank, columns] = b_or.t() * scale
            column += self._outputs[number]

    def clear(self, place: Place) -> None:
        """Take an adapter out."""
        held = self._held.get(place.rank)
        if held is None or place.index not in held:
            return
        held.discard(place.index)
        if not held:
            del self._held[place.rank], self._stacks[place.rank]
            return
        a_sir, b_sro = self._stacks[place.rank]
        for tensor in (a_sir, *b_sro):
            tensor[place.index].zero_()

    def add(self, y_to: Tensor, x_ti: Tensor, plan: TilePlan) -> None:
        """Add each row's adapter to its output, in place, in float32 with one rounding."""
        stack = self._stacks.get(plan.rank)
        if stack is None:
            return
        own = plan.whole and y_to.dtype == torch.float32
        x_ni = x_ti if plan.whole else x_ti.index_select(0, plan.gather_n)
        y_no = y_to if plan.whole else y_to.index_select(0, plan.gather_n)
        x_cki, y_cko = x_ni.float().view(-1, TILE, x_ni.shape[1]), y_no.float().view(-1, TILE, y_no.shape[1])
        for call in plan.calls:
            self._call(y_cko, x_cki, call, *stack)
        if own:
            return
        made_no = y_cko.view_as(y_no)
        if plan.whole:
            y_to.copy_(made_no)
        elif plan.rows is None:
            torch.index_select(made_no.to(y_to.dtype), 0, plan.source, out=y_to)
        else:
            y_to.index_copy_(0, plan.rows, made_no.index_select(0, plan.source).to(y_to.dtype))

    def _call(self, y_cko: Tensor, x_cki: Tensor, call: Call, a_sir: Tensor, b_sro: Sequence[Tensor]) -> None:
        count = call.count if call.one else min(call.count, a_sir.shape[0] - call.low)
        if call.low >= a_sir.shape[0]:  # this layer isn't adapted by so late an adapter
            return
        high = call.low + (1 if call.one else count)
        x, y = x_cki.narrow(0, call.first, count), y_cko.narrow(0, call.first, count)

        def of(stack: Tensor) -> Tensor:
            part = stack[call.low : high]
            return part.expand(count, -1, -1) if call.one else part

        inner = torch.bmm(x, of(a_sir))
        if not self._apart:
            y.baddbmm_(inner, of(b_sro[0]))
            return
        column, rank = 0, b_sro[0].shape[1]
        for number, b in enumerate(b_sro):
            piece = y.narrow(2, column, b.shape[2])
            piece.baddbmm_(inner.narrow(2, number * rank, rank), of(b))
            column += b.shape[2]

    def _room(self, place: Place) -> tuple[Tensor, list[Tensor]]:
        a, b = self._stacks.get(place.rank, (None, []))
        size = 0 if a is None else a.shape[0]
        if place.index >= size:
            grown = max(place.index + 1, 2 * size)
            width = place.rank * len(self._outputs)
            with torch.device(self._device or "cpu"):
                a_new = torch.zeros(grown, self._inputs, width)
                if self._apart:
                    b_new = [torch.zeros(grown, place.rank, output) for output in self._outputs]
                else:
                    b_new = [torch.zeros(grown, width, sum(self._outputs))]
            if a is not None:
                a_new[:size] = a
                for new, old in zip(b_new, b, strict=True):
                    new[:size] = old
            self._stacks[place.rank] = (a_new, b_new)
        return self._stacks[place.rank]
