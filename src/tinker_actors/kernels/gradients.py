"""The residual's backward pass by torch's products.

With S = X A^T and Y += s S B^T: dS = s dY B, dB = s dY^T S, dA = dS^T X, dX = dS A. Every product is over one
adapter's rows.

Shapes: T rows of the token matrix, N of them with one adapter, I inputs, O outputs, R the adapter's rank.
"""
# ruff: noqa: N803, N806 - tensor names end in their shape

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tinker_actors.kernels.device_plan import order_on
from tinker_actors.kernels.plan import KernelError, RowPlan, Segment


def residual_with_gradients(
    y_TO: Tensor, x_TI: Tensor, plan: RowPlan, slots: Sequence[int], scales: Sequence[float], weights: Sequence[Tensor]
) -> Tensor:
    """`lora_residual` for the slots given, as a node of autograd's graph.

    Args:
        y_TO: [rows, out], overwritten.
        x_TI: [rows, in].
        plan: Built for these rows.
        slots: The plan's slots whose adapters have a part in this projection.
        scales: Factor of each of them.
        weights: A [rank, in] and B [out, rank] of each of them, one after the other.

    Raises:
        KernelError: A shape doesn't fit.
    """
    wanted = dict(zip(slots, range(len(slots)), strict=True))
    parts = [(segment, wanted[segment.slot]) for segment in plan.segments if segment.slot in wanted]
    return _Residual.apply(y_TO, x_TI, plan, parts, tuple(scales), *weights)  # pyright: ignore[reportReturnType]


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        y_TO: Tensor,
        x_TI: Tensor,
        plan: RowPlan,
        parts: list[tuple[Segment, int]],
        scales: tuple[float, ...],
        *weights: Tensor,
    ) -> Tensor:
        work = torch.float64 if y_TO.dtype == torch.float64 else torch.float32
        segments = [segment for segment, _ in parts]
        shrunk: list[Tensor] = []
        rows = zip(parts, _rows(y_TO, plan, segments), _rows(x_TI, plan, segments), strict=True)
        for (segment, index), y_NO, x_NI in rows:
            a_RI, b_OR = _as(work, weights[2 * index]), _as(work, weights[2 * index + 1])
            try:
                shrunk_NR = torch.mm(_as(work, x_NI), a_RI.t())
                if segment.start is not None and y_NO.dtype == work:
                    y_NO.addmm_(shrunk_NR, b_OR.t(), alpha=scales[index])
                else:
                    _put(y_TO, torch.addmm(_as(work, y_NO), shrunk_NR, b_OR.t(), alpha=scales[index]), plan, segment)
            except RuntimeError as error:
                raise KernelError(
                    f"slot {segment.slot}: A {tuple(a_RI.shape)} and B {tuple(b_OR.shape)} do not fit "
                    f"{x_TI.shape[1]} inputs and {y_TO.shape[1]} outputs"
                ) from error
            shrunk.append(shrunk_NR)
        ctx.plan, ctx.parts, ctx.scales, ctx.work = plan, parts, scales, work
        ctx.save_for_backward(x_TI, *shrunk, *weights)
        ctx.mark_dirty(y_TO)
        return y_TO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (dy_TO,) = grad_outputs
        plan, parts, work = ctx.plan, ctx.parts, ctx.work
        x_TI, *saved = ctx.saved_tensors
        shrunk, weights = saved[: len(parts)], saved[len(parts) :]
        needs_y, needs_x, _, _, _, *needs_weights = ctx.needs_input_grad
        found: list[Tensor | None] = [None] * len(weights)
        covered = sum(segment.count for segment, _ in parts) == plan.rows
        fresh = torch.empty_like if covered else torch.zeros_like
        dx_TI = fresh(x_TI) if needs_x else None
        segments = [segment for segment, _ in parts]
        rows = zip(parts, shrunk, _rows(dy_TO, plan, segments), _rows(x_TI, plan, segments), strict=True)
        for (segment, index), shrunk_NR, dy_NO, x_NI in rows:
            a_RI, b_OR = weights[2 * index], weights[2 * index + 1]
            dy_NO = _as(work, dy_NO)
            # the scale goes onto the narrow products only
            ds_NR = torch.mm(dy_NO, _as(work, b_OR)).mul_(ctx.scales[index])
            if needs_weights[2 * index]:
                found[2 * index] = _as(a_RI.dtype, torch.mm(ds_NR.t(), _as(work, x_NI)))
            if needs_weights[2 * index + 1]:
                found[2 * index + 1] = _as(b_OR.dtype, torch.mm(dy_NO.t(), shrunk_NR).mul_(ctx.scales[index]))
            if dx_TI is not None:
                _put(dx_TI, torch.mm(ds_NR, _as(work, a_RI)), plan, segment)
        return (dy_TO if needs_y else None, dx_TI, None, None, None, *found)


def _rows(matrix: Tensor, plan: RowPlan, segments: Sequence[Segment]) -> list[Tensor]:
    """The rows of each segment: views where they lie together, else copies."""
    return [
        matrix.narrow(0, segment.start, segment.count)
        if segment.start is not None
        else matrix.index_select(0, _index(plan, segment, matrix.device))
        for segment in segments
    ]


def _as(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    # a conversion to the same dtype copies nothing, yet costs as much as a small product
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _put(matrix: Tensor, rows: Tensor, plan: RowPlan, segment: Segment) -> None:
    """Overwrite a segment's rows."""
    if segment.start is not None:
        matrix.narrow(0, segment.start, segment.count).copy_(rows)
    else:
        matrix.index_copy_(0, _index(plan, segment, matrix.device), rows.to(matrix.dtype))


def _index(plan: RowPlan, segment: Segment, device: torch.device) -> Tensor:
    return order_on(plan, device).narrow(0, segment.first, segment.count)
