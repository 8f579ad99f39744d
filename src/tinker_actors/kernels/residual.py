"""The residual Y += s (X A^T) B^T for rows of several adapters at once.

`lora_residual`, and `lora_residuals` for projections that share their input, are the way in for trainers and samplers
alike: on a GPU they launch kernels, elsewhere they are torch's products. `add_lora_residual` is the latter without
gradients.

Shapes: T rows of the token matrix, N of them with one adapter, I inputs, O outputs, R the adapter's rank (ranks may
differ).
"""
# ruff: noqa: N803, N806, N815 - tensor names end in their shape

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tinker_actors.kernels.backend import Backend, backend_for
from tinker_actors.kernels.device_plan import order_on
from tinker_actors.kernels.plan import KernelError, RowPlan, Segment

if TYPE_CHECKING:
    from tinker_actors.kernels.dispatch import Path

Slots = Sequence[Tensor | None] | Mapping[int, Tensor | None]
Scales = Sequence[float] | Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One of several projections of the same rows, with its adapters.

    Attributes:
        y_TO: [rows, out], the base projection's output.
        a_slots: [rank, in] for each slot, or None where the slot's adapter leaves this projection alone.
        b_slots: [out, rank] for each slot, None where `a_slots` is.
        scales: Factor for each slot.
    """

    y_TO: Tensor
    a_slots: Slots
    b_slots: Slots
    scales: Scales


def lora_residual(
    y_TO: Tensor,
    x_TI: Tensor,
    plan: RowPlan,
    a_slots: Slots,
    b_slots: Slots,
    scales: Scales,
    *,
    path: Path | None = None,
) -> Tensor:
    """Each row's adapter added to `y_TO` in place, with gradients to rows and adapters where they are wanted.

    An adapter's result and its gradient come from its own rows alone, in their order: who else shares the matrix
    changes no bit of either, as long as the same way is taken.

    Args:
        y_TO: [rows, out], the base projection's output, overwritten.
        x_TI: [rows, in], the projection's input.
        plan: Built for these rows.
        a_slots: [rank, in] for each slot, or None where the slot's adapter leaves this projection alone.
        b_slots: [out, rank] for each slot, None where `a_slots` is.
        scales: Factor for each slot.
        path: On a GPU, the way to take rather than the one that should be fastest (see `dispatch`).

    Returns:
        What `y_TO` holds now; use this and no longer `y_TO`, whose history ends before the residual.

    Raises:
        KernelError: The plan is for another number of rows, a slot is not given, or a shape does not fit.
    """
    backend = backend_for(y_TO.device)
    if backend is not None:
        projection = Projection(y_TO=y_TO, a_slots=a_slots, b_slots=b_slots, scales=scales)
        answers = _on_kernels(backend, [projection], x_TI, plan, path)
        if answers is not None:
            return answers[0]
    return _by_products(y_TO, x_TI, plan, a_slots, b_slots, scales)


def lora_residuals(
    projections: Sequence[Projection], x_TI: Tensor, plan: RowPlan, *, path: Path | None = None
) -> list[Tensor]:
    """`lora_residual` for one to three projections of the same rows: on a GPU they share each launch.

    Raises:
        KernelError: As `lora_residual`, or there are more than three projections.
    """
    given = projections[0].y_TO if projections else x_TI
    backend = backend_for(given.device)
    answers = None if backend is None else _on_kernels(backend, projections, x_TI, plan, path)
    if answers is None:
        answers = [_by_products(p.y_TO, x_TI, plan, p.a_slots, p.b_slots, p.scales) for p in projections]
    return answers


def _on_kernels(
    backend: Backend, projections: Sequence[Projection], x_TI: Tensor, plan: RowPlan, path: Path | None
) -> list[Tensor] | None:
    from tinker_actors.kernels.on_kernels import Entry, residuals_on_kernels

    entries: list[Entry] = []
    weights: list[Tensor] = []
    for at, projection in enumerate(projections):
        check_rows(projection.y_TO, x_TI, plan)
        for slot in plan.slots:
            if adapts(slot, projection.a_slots, projection.b_slots):
                a_RI, b_OR = projection.a_slots[slot], projection.b_slots[slot]
                assert a_RI is not None
                assert b_OR is not None
                entries.append(Entry(slice=at, slot=slot, scale=projection.scales[slot]))
                weights += [a_RI, b_OR]
    ys_TO = [projection.y_TO for projection in projections]
    return residuals_on_kernels(backend, ys_TO, x_TI, plan, entries, weights, path) if entries else ys_TO


def _by_products(y_TO: Tensor, x_TI: Tensor, plan: RowPlan, a_slots: Slots, b_slots: Slots, scales: Scales) -> Tensor:
    if torch.is_grad_enabled():
        from tinker_actors.kernels.gradients import residual_with_gradients

        slots = [slot for slot in plan.slots if adapts(slot, a_slots, b_slots)]
        weights = [weight for slot in slots for weight in (a_slots[slot], b_slots[slot]) if weight is not None]
        if any(tensor.requires_grad for tensor in (y_TO, x_TI, *weights)):
            check_rows(y_TO, x_TI, plan)
            return residual_with_gradients(y_TO, x_TI, plan, slots, [scales[slot] for slot in slots], weights)
    add_lora_residual(y_TO, x_TI, plan, a_slots, b_slots, scales)
    return y_TO


def add_lora_residual(
    y_TO: Tensor, x_TI: Tensor, plan: RowPlan, a_slots: Slots, b_slots: Slots, scales: Scales
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
        b_slots: [out, rank] for each slot, None where `a_slots` is. Fastest as the transpose of a contiguous one.
        scales: Factor for each slot, alpha / rank for plain LoRA.

    Raises:
        KernelError: The plan is for another number of rows, a slot is not given, or a shape does not fit. What
            `y_TO` holds is undefined then.
    """
    check_rows(y_TO, x_TI, plan)
    scattered: list[Segment] = []
    for segment in plan.segments:
        slot, start = segment.slot, segment.start
        if not adapts(slot, a_slots, b_slots):
            continue
        if start is None:
            scattered.append(segment)
        else:
            y_NO, x_NI = y_TO.narrow(0, start, segment.count), x_TI.narrow(0, start, segment.count)
            _add(y_NO, x_NI, a_slots[slot], b_slots[slot], scales[slot], slot)
    if scattered:
        _add_gathered(y_TO, x_TI, plan, scattered, a_slots, b_slots, scales)


def _add_gathered(
    y_TO: Tensor,
    x_TI: Tensor,
    plan: RowPlan,
    segments: list[Segment],
    a_slots: Slots,
    b_slots: Slots,
    scales: Scales,
) -> None:
    """Gather the rows of these adapters once, sorted, add to each part, and put them back."""
    order = order_on(plan, y_TO.device)
    pieces = [order.narrow(0, segment.first, segment.count) for segment in segments]
    index = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    counts = [segment.count for segment in segments]
    sorted_y, sorted_x = y_TO.index_select(0, index), x_TI.index_select(0, index)
    parts = zip(segments, sorted_y.split(counts), sorted_x.split(counts), strict=True)
    for segment, y_NO, x_NI in parts:
        slot = segment.slot
        _add(y_NO, x_NI, a_slots[slot], b_slots[slot], scales[slot], slot)
    y_TO.index_copy_(0, index, sorted_y)


def _add(y_NO: Tensor, x_NI: Tensor, a_RI: Tensor | None, b_OR: Tensor | None, scale: float, slot: int) -> None:
    """One adapter's rows. This runs for every adapter of every projection: small adapters feel each call in it."""
    assert a_RI is not None
    assert b_OR is not None
    parts = y_NO.is_cuda and y_NO.dtype.itemsize == 2 and x_NI.dtype == y_NO.dtype == a_RI.dtype == b_OR.dtype
    work = y_NO.dtype if parts or y_NO.dtype == torch.float64 else torch.float32
    # a conversion to the same dtype copies nothing, yet costs as much as a small product
    if x_NI.dtype != work:
        x_NI = x_NI.to(work)
    if a_RI.dtype != work:
        a_RI = a_RI.to(work)
    if b_OR.dtype != work:
        b_OR = b_OR.to(work)
    try:
        if parts:
            add_by_parts(y_NO, x_NI, a_RI, b_OR, scale)
            return
        shrunk_NR = torch.mm(x_NI, a_RI.t())
        if y_NO.dtype == work:
            y_NO.addmm_(shrunk_NR, b_OR.t(), alpha=scale)
        else:
            y_NO.copy_(torch.addmm(y_NO.to(work), shrunk_NR, b_OR.t(), alpha=scale))
    except RuntimeError as error:
        raise KernelError(
            f"slot {slot}: A {tuple(a_RI.shape)} and B {tuple(b_OR.shape)} do not fit "
            f"{x_NI.shape[1]} inputs and {y_NO.shape[1]} outputs"
        ) from error


def add_by_parts(y_NO: Tensor, x_NI: Tensor, a_RI: Tensor, b_OR: Tensor, scale: float) -> None:
    """One adapter's rows where all is of one 16-bit dtype, in two products that tensor cores take as they are.

    What lies between them is float32; its two 16-bit parts, side by side, meet B twice in one product, so that there
    is one rounding at the end.
    """
    if x_NI.is_cuda:
        shrunk_NR = torch.mm(x_NI, a_RI.t(), out_dtype=torch.float32)
    else:
        shrunk_NR = torch.mm(x_NI.float(), a_RI.t().float())
    high_NR = shrunk_NR.to(y_NO.dtype)
    low_NR = (shrunk_NR - high_NR.float()).to(y_NO.dtype)
    y_NO.addmm_(torch.cat([high_NR, low_NR], dim=1), torch.cat([b_OR, b_OR], dim=1).t(), alpha=scale)


def check_rows(y_TO: Tensor, x_TI: Tensor, plan: RowPlan) -> None:
    """Refuse matrices that the plan isn't for.

    Raises:
        KernelError: They are.
    """
    if y_TO.dim() != 2 or x_TI.dim() != 2 or not plan.rows == y_TO.shape[0] == x_TI.shape[0]:
        raise KernelError(f"a plan for {plan.rows} rows was given y {tuple(y_TO.shape)} and x {tuple(x_TI.shape)}")


def adapts(slot: int, a_slots: Slots, b_slots: Slots) -> bool:
    """Whether a slot's adapter has a part in this projection.

    Raises:
        KernelError: The slot holds no adapter, or only half of one.
    """
    try:
        a_RI, b_OR = a_slots[slot], b_slots[slot]
    except LookupError:
        raise KernelError(f"the plan has rows for slot {slot}, which holds no adapter") from None
    if (a_RI is None) != (b_OR is None):
        raise KernelError(f"slot {slot} has only one of A and B")
    return a_RI is not None
