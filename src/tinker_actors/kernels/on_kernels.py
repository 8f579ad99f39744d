"""The residual by the GPU's kernels, with gradients: what `lora_residuals` does where there is a backend.

Shapes: T rows of the token matrix, I inputs, O outputs, R the adapter's rank.
"""
# ruff: noqa: N803, N806 - tensor names end in their shape

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tinker_actors.kernels.backend import Backend
from tinker_actors.kernels.device_plan import DevicePlan
from tinker_actors.kernels.dispatch import Path, choose_path
from tinker_actors.kernels.launcher import Launcher, fits
from tinker_actors.kernels.plan import KernelError, RowPlan
from tinker_actors.kernels.source import BACKWARD_WIDTH, MMA_SPLIT
from tinker_actors.kernels.tables import MAX_RANK, TYPE_NAMES, AdapterTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One adapter's part in one projection.

    Attributes:
        slice: Which projection.
        slot: Which adapter.
        scale: Its factor.
    """

    slice: int
    slot: int
    scale: float


def residuals_on_kernels(
    backend: Backend,
    ys_TO: Sequence[Tensor],
    x_TI: Tensor,
    plan: RowPlan,
    entries: Sequence[Entry],
    weights: Sequence[Tensor],
    path: Path | None,
) -> list[Tensor] | None:
    """Add the entries' adapters to `ys_TO` in place, or say with None that torch's own products are the way.

    Args:
        backend: What starts kernels.
        ys_TO: One to three projections' outputs.
        x_TI: Their input.
        plan: Built for these rows.
        entries: At least one.
        weights: A [rank, in] and B [out, rank] of each entry, one after the other.
        path: The way, or None for the one that should be fastest.

    Raises:
        KernelError: Shapes or dtypes don't belong together, or the way asked for isn't there for them.
    """
    _check_shapes(ys_TO, x_TI, entries, weights)
    dtypes = {weight.dtype for weight in weights}
    possible = (
        x_TI.dtype in TYPE_NAMES
        and all(y_TO.dtype == x_TI.dtype for y_TO in ys_TO)
        and dtypes <= {x_TI.dtype, torch.float32}
        and all(a_RI.shape[0] <= MAX_RANK for a_RI in weights[::2])
    )
    if not possible and path in (Path.DECODE, Path.PREFILL):
        raise KernelError(
            f"there is no {path.value} kernel for {x_TI.dtype} rows, weights of {sorted(map(str, dtypes))} and "
            f"ranks up to {max(a_RI.shape[0] for a_RI in weights[::2])}"
        )
    if not possible:
        return None
    gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*ys_TO, x_TI, *weights))
    if path is None:
        ranks = [a_RI.shape[0] for a_RI in weights[::2]]
        path = choose_path(plan, ranks, same_dtype=dtypes == {x_TI.dtype}, gradients=gradients)
    if path is Path.PRODUCTS:
        return None
    if len(dtypes) > 1:
        weights = [weight.float() for weight in weights]
    call = _Call(backend=backend, plan=plan, entries=tuple(entries), slices=len(ys_TO))
    if gradients:
        if path is Path.DECODE:
            raise KernelError("the decode kernels have no gradients; ask for prefill, or for no way in particular")
        return list(_OnKernels.apply(call, x_TI, *ys_TO, *weights))  # pyright: ignore[reportArgumentType]
    return _without_gradients(call, ys_TO, x_TI, weights, path)


def _without_gradients(
    call: _Call, ys_TO: Sequence[Tensor], x_TI: Tensor, weights: Sequence[Tensor], path: Path
) -> list[Tensor]:
    """Launch what only computes forward."""
    return launch_residual(call.launcher(x_TI, weights), ys_TO, x_TI, path)


def launch_residual(launcher: Launcher, ys_TO: Sequence[Tensor], x_TI: Tensor, path: Path) -> list[Tensor]:
    """Add the residual of a launcher's adapters to `ys_TO` in place; without gradients.

    Args:
        launcher: For these rows.
        ys_TO: One to three projections' outputs.
        x_TI: Their input.
        path: Decode or prefill.
    """
    x_TI = x_TI if fits(x_TI) else x_TI.contiguous()
    inside = [y_TO if fits(y_TO) else y_TO.contiguous() for y_TO in ys_TO]
    if path is Path.PREFILL:
        launcher.prefill(inside, x_TI)
    elif launcher.can_fuse(x_TI.shape[1]):
        launcher.fused(inside, x_TI)
    else:
        launcher.decode(inside, x_TI)
    return [_back(y_TO, done) for y_TO, done in zip(ys_TO, inside, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What a call's forward and backward pass share.

    Attributes:
        backend: What starts kernels.
        plan: The rows.
        entries: The adapters' parts.
        slices: How many projections.
    """

    backend: Backend
    plan: RowPlan
    entries: tuple[Entry, ...]
    slices: int

    def table(self, weights: Sequence[Tensor | None], like: Sequence[Tensor], scales: bool = True) -> AdapterTable:
        """A table of these A and B, one after the other; entries of which one is None are left out."""
        table = AdapterTable(
            slices=self.slices,
            slots=1 + max(self.plan.slots),
            dtype=like[0].dtype,
            device=like[0].device,
            max_rank=max(a_RI.shape[0] for a_RI in like[::2]),
        )
        for entry, a_RI, b_OR in zip(self.entries, weights[::2], weights[1::2], strict=True):
            if a_RI is not None and b_OR is not None:
                table.set(entry.slice, entry.slot, a_RI, b_OR, entry.scale if scales else 1.0)
        table.upload()
        return table

    def launcher(self, x_TI: Tensor, weights: Sequence[Tensor]) -> Launcher:
        """Launches kernels for these rows and adapters."""
        plan = DevicePlan.of(self.plan, x_TI.device)
        return Launcher(self.backend, plan, self.table(weights, weights), x_TI.dtype, x_TI.device)


class _OnKernels(torch.autograd.Function):
    """S = scale X A^T is kept. dS = scale dY B and dB = dY^T S in one kernel, dA = dS^T X, dX = dS A."""

    @staticmethod
    def forward(ctx: Any, call: _Call, x_TI: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ys_TO, weights = tensors[: call.slices], tensors[call.slices :]
        launcher = call.launcher(x_TI, weights)
        rows_TI = x_TI if fits(x_TI) else x_TI.contiguous()
        inside = [y_TO if fits(y_TO) else y_TO.contiguous() for y_TO in ys_TO]
        partials = launcher.scratch(rows_TI.shape[1], decode=False)
        launcher.shrink(partials, rows_TI)
        narrow = torch.empty(launcher.narrow_shape, dtype=torch.float32, device=x_TI.device)
        launcher.sum_narrow(narrow, partials, [rows_TI.shape[1]] * call.slices, MMA_SPLIT)
        launcher.expand(inside, narrow.unsqueeze(1), scaled=True)
        for y_TO, done in zip(ys_TO, inside, strict=True):
            _back(y_TO, done)
        ctx.call, ctx.launcher = call, launcher
        ctx.save_for_backward(rows_TI, narrow, *weights)
        ctx.mark_dirty(*ys_TO)
        return ys_TO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *dys_TO: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        call, launcher = ctx.call, ctx.launcher
        x_TI, narrow, *weights = ctx.saved_tensors
        needs = ctx.needs_input_grad
        needs_x, needs_y, needs_weights = needs[1], needs[2 : 2 + call.slices], needs[2 + call.slices :]
        dys = [dy_TO if needed else None for dy_TO, needed in zip(dys_TO, needs_y, strict=True)]
        if not (needs_x or any(needs_weights)):
            return (None, None, *dys, *[None] * len(weights))
        grads = [dy_TO.to(x_TI.dtype) for dy_TO in dys_TO]
        grads = [grad if fits(grad) else grad.contiguous() for grad in grads]
        widths = [grad.shape[1] for grad in grads]
        found: list[Tensor | None] = [
            torch.empty_like(weight, memory_format=torch.contiguous_format) if needed else None
            for weight, needed in zip(weights, needs_weights, strict=True)
        ]
        narrow_grad = _narrow_gradients(launcher, narrow, grads, widths, call, found, weights)
        if any(needs_weights[::2]):
            chunks = launcher.gradient_scratch(x_TI.shape[1])
            launcher.gradient(chunks, narrow_grad, [x_TI] * call.slices)
            table = call.table(_pairs(found, weights, 0), weights)
            launcher.sum_gradients(chunks, [x_TI.shape[1]] * call.slices, table, of_b=False)
        dx_TI = _input_gradient(launcher, narrow_grad, x_TI, call) if needs_x else None
        return (None, dx_TI, *dys, *found)


def _narrow_gradients(
    launcher: Launcher,
    narrow: Tensor,
    grads: Sequence[Tensor],
    widths: Sequence[int],
    call: _Call,
    found: Sequence[Tensor | None],
    weights: Sequence[Tensor],
) -> Tensor:
    """dS, scaled; and dB into `found`, where it is wanted."""
    slices, positions, stride = narrow.shape
    per_split = BACKWARD_WIDTH if any(gradient is not None for gradient in found[1::2]) else MMA_SPLIT
    partials = narrow.new_empty((slices, -(-max(widths) // per_split), positions, stride))
    if per_split == BACKWARD_WIDTH:
        chunks = launcher.gradient_scratch(max(widths))
        launcher.both(chunks, partials, narrow, grads)
        launcher.sum_gradients(chunks, widths, call.table(_pairs(found, weights, 1), weights), of_b=True)
    else:
        for at, grad in enumerate(grads):
            splits = -(-grad.shape[1] // per_split)
            launcher.shrink(partials[at : at + 1, :splits], grad, by_b=True, first=at)
    narrow_grad = torch.empty_like(narrow)
    launcher.sum_narrow(narrow_grad, partials, widths, per_split)
    return narrow_grad


def _input_gradient(launcher: Launcher, narrow_grad: Tensor, x_TI: Tensor, call: _Call) -> Tensor:
    # the first projection's kernel overwrites; rows that it leaves out must hold nothing
    written = {entry.slot for entry in call.entries if entry.slice == 0}
    covered = sum(segment.count for segment in call.plan.segments if segment.slot in written)
    dx_TI = torch.empty_like(x_TI, memory_format=torch.contiguous_format)
    if covered < call.plan.rows:
        dx_TI.zero_()
    for at in range(call.slices):
        launcher.expand([dx_TI], narrow_grad[at : at + 1].unsqueeze(1), by_a=True, adds=at > 0, scaled=True, first=at)
    return dx_TI


def _pairs(found: Sequence[Tensor | None], weights: Sequence[Tensor], side: int) -> list[Tensor | None]:
    """The table's entries for gradients of one side: A's or B's place, beside the other side's weight."""
    pairs: list[Tensor | None] = []
    for at in range(0, len(found), 2):
        wanted = found[at + side]
        pair: list[Tensor | None] = [weights[at], weights[at + 1]] if wanted is not None else [None, None]
        pair[side] = wanted
        pairs += pair
    return pairs


def _back(y_TO: Tensor, done: Tensor) -> Tensor:
    return y_TO if done is y_TO else y_TO.copy_(done)


def _check_shapes(ys_TO: Sequence[Tensor], x_TI: Tensor, entries: Sequence[Entry], weights: Sequence[Tensor]) -> None:
    for entry, a_RI, b_OR in zip(entries, weights[::2], weights[1::2], strict=True):
        outputs = ys_TO[entry.slice].shape[1]
        if a_RI.shape != (b_OR.shape[1], x_TI.shape[1]) or b_OR.shape[0] != outputs:
            raise KernelError(
                f"slot {entry.slot}: A {tuple(a_RI.shape)} and B {tuple(b_OR.shape)} do not fit "
                f"{x_TI.shape[1]} inputs and {outputs} outputs"
            )
