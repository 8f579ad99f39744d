"""The residual Y += s (X A^T) B^T for rows of several adapters at once, on the CPU.

Shapes: T rows of the token matrix, N of them with one adapter, I inputs, O outputs, R the adapter's rank (ranks may
differ).
"""
# ruff: noqa: N803, N806 - tensor names end in their shape

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tinker_actors.kernels.plan import KernelError, RowPlan, Segment

Slots = Sequence[Tensor | None] | Mapping[int, Tensor | None]


def add_lora_residual(
    y_TO: Tensor,
    x_TI: Tensor,
    plan: RowPlan,
    a_slots: Slots,
    b_slots: Slots,
    scales: Sequence[float] | Mapping[int, float],
) -> None:
    """Add each row's adapter to `y_TO` in place.

    Each adapter multiplies its own rows only, so an adapter that holds NaN spoils no other's, and rows without an
    adapter keep every bit. Products and sums are in float32 (float64 for float64 rows) whatever the rows' dtype,
    with one rounding at the end.

    Args:
        y_TO: [rows, out], the base projection's output; any strides that do not overlap.
        x_TI: [rows, in], the projection's input, same dtype; any strides.
        plan: Built for these rows.
        a_slots: [rank, in] for each slot, or None where the slot's adapter leaves this projection alone.
        b_slots: [out, rank] for each slot, None where `a_slots` is.
        scales: Factor for each slot, alpha / rank for plain LoRA.

    Raises:
        KernelError: The plan is for another number of rows, a slot is not given, or a shape does not fit.
    """
    if y_TO.dim() != 2 or x_TI.dim() != 2 or not plan.rows == y_TO.shape[0] == x_TI.shape[0]:
        raise KernelError(f"a plan for {plan.rows} rows was given y {tuple(y_TO.shape)} and x {tuple(x_TI.shape)}")
    work = torch.promote_types(torch.float32, y_TO.dtype)
    scattered: list[tuple[Segment, Tensor, Tensor]] = []
    for segment in plan.segments:
        weights = _weights(segment.slot, a_slots, b_slots, y_TO, x_TI)
        if weights is None:
            continue
        a_RI, b_OR = weights[0].to(work), weights[1].to(work)
        if segment.start is None:
            scattered.append((segment, a_RI, b_OR))
            continue
        rows = slice(segment.start, segment.start + segment.count)
        _add(y_TO[rows], x_TI[rows].to(work), a_RI, b_OR, scales[segment.slot])
    if scattered:
        _add_gathered(y_TO, x_TI, plan, scattered, scales)


def _add_gathered(
    y_TO: Tensor,
    x_TI: Tensor,
    plan: RowPlan,
    parts: list[tuple[Segment, Tensor, Tensor]],
    scales: Sequence[float] | Mapping[int, float],
) -> None:
    """Gather the rows of several adapters once, sorted, add to each part, and put them back."""
    order = torch.from_numpy(plan.order)
    pieces = [order[segment.first : segment.first + segment.count] for segment, _, _ in parts]
    index = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    work = torch.promote_types(torch.float32, y_TO.dtype)
    sorted_y_NO, sorted_x_NI = y_TO.index_select(0, index).to(work), x_TI.index_select(0, index).to(work)
    first = 0
    for segment, a_RI, b_OR in parts:
        rows = slice(first, first + segment.count)
        _add(sorted_y_NO[rows], sorted_x_NI[rows], a_RI, b_OR, scales[segment.slot])
        first += segment.count
    y_TO.index_copy_(0, index, sorted_y_NO.to(y_TO.dtype))


def _add(y_NO: Tensor, x_NI: Tensor, a_RI: Tensor, b_OR: Tensor, scale: float) -> None:
    """One adapter's rows; `x_NI`, `a_RI` and `b_OR` are in the working dtype, `y_NO` may be in a smaller one."""
    shrunk_NR = torch.mm(x_NI, a_RI.t())
    if y_NO.dtype == shrunk_NR.dtype:
        y_NO.addmm_(shrunk_NR, b_OR.t(), alpha=scale)
    else:
        y_NO.copy_(torch.addmm(y_NO.to(shrunk_NR.dtype), shrunk_NR, b_OR.t(), alpha=scale))


def _weights(
    slot: int,
    a_slots: Slots,
    b_slots: Slots,
    y_TO: Tensor,
    x_TI: Tensor,
) -> tuple[Tensor, Tensor] | None:
    try:
        a_RI, b_OR = a_slots[slot], b_slots[slot]
    except LookupError:
        raise KernelError(f"the plan has rows for slot {slot}, which holds no adapter") from None
    if a_RI is None and b_OR is None:
        return None
    if a_RI is None or b_OR is None:
        raise KernelError(f"slot {slot} has only one of A and B")
    if a_RI.shape != (b_OR.shape[1], x_TI.shape[1]) or b_OR.shape[0] != y_TO.shape[1]:
        raise KernelError(
            f"slot {slot}: A {tuple(a_RI.shape)} and B {tuple(b_OR.shape)} do not fit "
            f"{x_TI.shape[1]} inputs and {y_TO.shape[1]} outputs"
        )
    return a_RI, b_OR
