"""Grids, shared memory and arguments of every kernel: the one place where launches are put together.

A launcher writes only what it is given. Everything that it launches is in order with the current stream's work, and
nothing waits for the device, so calls can be captured in a CUDA graph: reserve the plan, keep the table and give
`scratch` (allocated before the capture), and call once before.

Shapes: T rows of the token matrix, I inputs, O outputs.
"""
# ruff: noqa: N803 - tensor names end in their shape

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tinker_actors.kernels.backend import Backend
from tinker_actors.kernels.device_plan import DevicePlan, TileList
from tinker_actors.kernels.plan import KernelError
from tinker_actors.kernels.source import (
    BACKWARD_RANKS,
    BACKWARD_WIDTH,
    CLUSTER,
    DECODE_ROWS,
    DECODE_SPLIT,
    KERNELS,
    MMA_COLUMNS,
    MMA_ROWS,
    MMA_SPLIT,
    SLICES,
)
from tinker_actors.kernels.tables import AdapterTable

_NUMPY = {"P": np.uint64, "q": np.int64, "i": np.int32}
_ENOUGH_BLOCKS = 264  # two for each multiprocessor of the largest GPUs
_FUSED_SHARED = 96 * 1024


def fits(matrix: Tensor) -> bool:
    """Whether kernels can take a matrix as it is: entries of a row side by side, rows apart."""
    return matrix.stride(1) == 1 or matrix.shape[1] == 1


class Launcher:
    """Launches the kernels for one group of projections.

    Args:
        backend: What starts them.
        plan: The rows.
        table: The adapters.
        rows: The rows' dtype.
        device: Where all of it is.
    """

    def __init__(
        self, backend: Backend, plan: DevicePlan, table: AdapterTable, rows: torch.dtype, device: torch.device
    ) -> None:
        self._backend, self._plan, self._table, self._device = backend, plan, table, device
        self._types = table.types(rows)
        self._bound = table.bound
        # ranks are padded to whole 16-byte groups of float32
        self._stride = -(-table.max_rank // 4) * 4

    @property
    def narrow_shape(self) -> tuple[int, int, int]:
        """Shape of the sums between the two products: slices, positions, ranks padded."""
        return self._table.slices, self._plan.positions, self._stride

    def scratch(self, inputs: int, *, decode: bool) -> Tensor:
        """Room for the partial sums of `decode` or `prefill`, float32."""
        splits = -(-inputs // (DECODE_SPLIT if decode else MMA_SPLIT))
        slices, positions, stride = self.narrow_shape
        return torch.empty((slices, splits, positions, stride), dtype=torch.float32, device=self._device)

    def can_fuse(self, inputs: int) -> bool:
        """Whether `fused` takes these: there are clusters, and the sums fit into shared memory."""
        return self._backend.clusters(self._device) and self._fused_shared(inputs) <= _FUSED_SHARED

    def fused(self, ys_TO: Sequence[Tensor], x_TI: Tensor) -> None:
        """Add the residual in one kernel, for tiles of few rows. Bit for bit what `decode` adds."""
        plan, inputs = self._plan, x_TI.shape[1]
        grid = (plan.decode_tiles.count * CLUSTER, self._table.slices, 1)
        arguments = (*_rows(x_TI), *_outputs(ys_TO), *self._adapters(), *self._tiles(plan.decode_tiles), self._stride)
        self._launch("decode_fused", grid, self._fused_shared(inputs), arguments)

    def decode(self, ys_TO: Sequence[Tensor], x_TI: Tensor, scratch: Tensor | None = None) -> None:
        """Add the residual in two kernels, for tiles of few rows."""
        plan, slices = self._plan, self._table.slices
        partials = scratch if scratch is not None else self.scratch(x_TI.shape[1], decode=True)
        splits = partials.shape[1]
        common = (*self._adapters(), *self._tiles(plan.decode_tiles), plan.positions, self._stride)
        grid = (plan.decode_tiles.count, splits, slices)
        shared = DECODE_ROWS * DECODE_SPLIT * 4
        self._launch("decode_shrink", grid, shared, (partials.data_ptr(), *_rows(x_TI), *common))
        kernel = KERNELS["decode_expand"]
        grid = (plan.decode_tiles.count, -(-_widest(ys_TO) // kernel.threads), slices)
        arguments = (partials.data_ptr(), splits, *_outputs(ys_TO), *common)
        self._launch(kernel.name, grid, DECODE_ROWS * self._stride * 4, arguments)

    def prefill(self, ys_TO: Sequence[Tensor], x_TI: Tensor, scratch: Tensor | None = None) -> None:
        """Add the residual with tensor cores, for tiles of many rows."""
        partials = scratch if scratch is not None else self.scratch(x_TI.shape[1], decode=False)
        self.shrink(partials, x_TI)
        self.expand(ys_TO, partials)

    def shrink(self, partials: Tensor, x_TI: Tensor, *, by_b: bool = False, first: int = 0) -> None:
        """Products of rows with A, or B, of projections `first` and on, into [slices, splits, positions, ranks]."""
        plan, types = self._plan, self._types
        step = 64 if types.row_bytes == types.weight_bytes == 2 else 32
        staged = MMA_ROWS * _pitch(step, types.row_bytes) + _weights(step, self._bound, types.weight_bytes)
        arguments = (
            *(partials.data_ptr(), *_rows(x_TI), *self._adapters(first), *self._tiles(plan.mma_tiles)),
            *(plan.positions, self._stride, int(by_b)),
        )
        grid = (plan.mma_tiles.count, partials.shape[1], partials.shape[0])
        self._launch(f"mma_shrink_{self._bound}", grid, 2 * staged, arguments)

    def expand(
        self,
        ys_TO: Sequence[Tensor],
        partials: Tensor,
        *,
        by_a: bool = False,
        adds: bool = True,
        scaled: bool = False,
        first: int = 0,
    ) -> None:
        """Sums times B, or times A, of projections `first` and on, into the rows of `ys_TO`.

        Args:
            ys_TO: One for each slice of `partials`.
            partials: [slices, splits, positions, ranks].
            by_a: Times A, as gradients of the inputs are.
            adds: Add to what is there; else overwrite it.
            scaled: The sums bear the adapters' scales already.
            first: The table's projection that the first slice belongs to.
        """
        plan, widest = self._plan, _widest(ys_TO)
        columns = 8 * MMA_COLUMNS
        while columns > 2 * MMA_COLUMNS and plan.mma_tiles.count * -(-widest // columns) < _ENOUGH_BLOCKS:
            columns //= 2
        shared = MMA_ROWS * (_pitch(self._bound, 4) + _pitch(MMA_COLUMNS, 4))
        shared += _weights(MMA_COLUMNS, self._bound, self._types.weight_bytes)
        arguments = (
            *(partials.data_ptr(), partials.shape[1], *_outputs(ys_TO), *self._adapters(first)),
            *self._tiles(plan.mma_tiles),
            *(plan.positions, self._stride, int(not by_a), columns, int(adds), int(scaled)),
        )
        grid = (plan.mma_tiles.count, -(-widest // columns), len(ys_TO))
        self._launch(f"mma_expand_{self._bound}", grid, shared, arguments)

    def sum_narrow(self, narrow: Tensor, partials: Tensor, widths: Sequence[int], per_split: int) -> None:
        """Partial sums put together and scaled, into [slices, positions, ranks].

        Args:
            narrow: What is written.
            partials: [slices, splits, positions, ranks].
            widths: What each slice's partial sums went over.
            per_split: How much of it one went over.
        """
        plan = self._plan
        arguments = (
            *(narrow.data_ptr(), partials.data_ptr(), partials.shape[1], per_split, *_padded(widths)),
            *(*self._adapters(), plan.mma_tiles.address, plan.positions, self._stride),
        )
        self._launch("sum_narrow", (plan.mma_tiles.count, 1, narrow.shape[0]), 0, arguments)

    def gradient_scratch(self, widest: int) -> Tensor:
        """Room for a gradient's chunks, float32 [slices, chunks, columns, ranks]."""
        slices, _, stride = self.narrow_shape
        return torch.empty((slices, self._plan.chunks.count, widest, stride), dtype=torch.float32, device=self._device)

    def both(self, chunks: Tensor, narrow_partials: Tensor, narrow: Tensor, dys_TO: Sequence[Tensor]) -> None:
        """The chunks of dB and the partial sums of dS, from one read of the outputs' gradients.

        Args:
            chunks: From `gradient_scratch`, written.
            narrow_partials: [slices, splits, positions, ranks], a split per 128 outputs, written.
            narrow: S, scaled.
            dys_TO: The outputs' gradients.
        """
        self._backward("mma_both", chunks, narrow_partials.data_ptr(), narrow, dys_TO)

    def gradient(self, chunks: Tensor, narrow: Tensor, matrices: Sequence[Tensor]) -> None:
        """The chunks of a gradient: dA from dS and the inputs, or dB from S and the outputs' gradients."""
        self._backward("mma_gradient", chunks, 0, narrow, matrices)

    def sum_gradients(self, chunks: Tensor, widths: Sequence[int], gradients: AdapterTable, *, of_b: bool) -> None:
        """A gradient's chunks put together, into what the table of gradients has for A, or for B."""
        plan, segments = self._plan, self._plan.segments
        table = (gradients.address_of(0), gradients.slots)
        arguments = (
            *(chunks.data_ptr(), plan.chunks.count, chunks.shape[2], self._stride, *_padded(widths)),
            *(*table, segments.address, int(of_b)),
        )
        grid = (-(-max(widths) // KERNELS["sum_gradients"].threads), segments.count, chunks.shape[0])
        self._launch("sum_gradients", grid, 0, arguments)

    def _backward(self, name: str, chunks: Tensor, partials: int, narrow: Tensor, matrices: Sequence[Tensor]) -> None:
        plan, types = self._plan, self._types
        bound = min(self._bound, BACKWARD_RANKS)
        blocks = -(-self._table.max_rank // bound)
        shared = MMA_ROWS * (_pitch(BACKWARD_WIDTH, types.row_bytes) + _pitch(bound, 4))
        if name == "mma_both":
            shared += _weights(BACKWARD_WIDTH, bound, types.weight_bytes)
        arguments = (
            *(chunks.data_ptr(), partials, narrow.data_ptr(), *_outputs(matrices), *self._adapters()),
            *(*self._tiles(plan.chunks), plan.positions, self._stride, chunks.shape[2], blocks),
        )
        grid = (plan.chunks.count, -(-_widest(matrices) // BACKWARD_WIDTH), len(matrices) * blocks)
        self._launch(f"{name}_{bound}", grid, shared, arguments)

    def _fused_shared(self, inputs: int) -> int:
        pieces = -(-inputs // DECODE_SPLIT)
        return DECODE_ROWS * (DECODE_SPLIT + (-(-pieces // CLUSTER) + 1) * self._stride) * 4

    def _adapters(self, first: int = 0) -> tuple[int, int]:
        return self._table.address_of(first), self._table.slots

    def _tiles(self, tiles: TileList) -> tuple[int, int]:
        return tiles.address, self._plan.perm

    def _launch(self, name: str, grid: tuple[int, int, int], shared: int, arguments: Sequence[int]) -> None:
        if 0 in grid:  # a launch of no blocks is an error, or one block
            return
        kernel = KERNELS[name]
        typed = [_NUMPY[letter](value) for letter, value in zip(kernel.parameters, arguments, strict=True)]
        self._backend.launch(kernel, self._types, grid, shared, typed, self._device)


def _rows(x_TI: Tensor) -> tuple[int, int, int]:
    if not fits(x_TI):
        raise KernelError(f"kernels were given a matrix of strides {x_TI.stride()}; entries of a row must lie together")
    return x_TI.data_ptr(), x_TI.stride(0), x_TI.shape[1]


def _outputs(ys_TO: Sequence[Tensor]) -> tuple[int, ...]:
    given = [value for y_TO in ys_TO for value in _rows(y_TO)]
    return (*given, *[0] * (3 * (SLICES - len(ys_TO))))


def _padded(widths: Sequence[int]) -> tuple[int, ...]:
    return (*widths, *[0] * (SLICES - len(widths)))


def _widest(ys_TO: Sequence[Tensor]) -> int:
    return max(y_TO.shape[1] for y_TO in ys_TO)


def _pitch(columns: int, item: int) -> int:
    """Bytes between lines of a staged tile (ta_pitch)."""
    return columns * item + 16


def _weights(features: int, ranks: int, item: int) -> int:
    """Bytes of staged weights (ta_weights_size)."""
    return max(ranks * _pitch(features, item), features * _pitch(ranks, item))
