"""A row plan where kernels read it: tiles, chunks, segments and the permutation in one buffer on the device.

    plan = DevicePlan.of(RowPlan.build(slots), device)                # as large as it must be
    plan = DevicePlan.reserve(rows=256, adapters=64, device=device)   # as large as it may become; then, every step,
    plan.load(RowPlan.build(slots))

A captured CUDA graph keeps the addresses and grids of the plan it was captured with: reserve one, and load each
step's rows into it before the replay. Tiles that a step leaves unused have count 0.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinker_actors.kernels.plan import KernelError, RowPlan
from tinker_actors.kernels.source import CHUNK_ROWS, DECODE_ROWS, MMA_ROWS

_RING = 4


@dataclass(frozen=True, slots=True)
class TileList:
    """Tiles of one size within a plan's buffer.

    Attributes:
        address: Of the first int4 on the device.
        count: How many there are, unused ones included.
    """

    address: int
    count: int


class DevicePlan:
    """What the kernels need to know of one step's rows.

    Attributes:
        rows: Rows of the matrix that is loaded.
        positions: Room for rows with an adapter.
        adapters: Room for adapters.
        perm: Address of the positions' row numbers, int32.
        decode_tiles: Tiles of at most 8 rows.
        mma_tiles: Tiles of at most 64 rows.
        chunks: Tiles of at most 512 rows, for gradients.
        segments: {slot, first chunk, chunks, 0} for each adapter.
    """

    def __init__(self, positions: int, adapters: int, counts: tuple[int, int, int], device: torch.device) -> None:
        self.rows = 0
        self.positions, self.adapters, self._counts = positions, adapters, counts
        sizes = [4 * count for count in (*counts, adapters)]
        self._ends = np.cumsum([_whole(positions), *sizes]).tolist()
        self._buffer = torch.zeros(self._ends[-1], dtype=torch.int32, device=device)
        starts = [self._buffer.data_ptr() + 4 * end for end in self._ends]
        self.perm = self._buffer.data_ptr()
        self.decode_tiles, self.mma_tiles, self.chunks, self.segments = (
            TileList(start, count) for start, count in zip(starts[:-1], (*counts, adapters), strict=True)
        )

    @classmethod
    def of(cls, plan: RowPlan, device: torch.device) -> DevicePlan:
        """A plan with room for these rows and no more. One that was made for the same rows before is used again."""
        held = plan.on_devices.get(device)
        if not isinstance(held, DevicePlan):
            counts = tuple(
                sum(-(-segment.count // size) for segment in plan.segments)
                for size in (DECODE_ROWS, MMA_ROWS, CHUNK_ROWS)
            )
            held = cls(plan.order.shape[0], len(plan.segments), counts, device)  # pyright: ignore[reportArgumentType]
            held.load(plan)
            plan.on_devices[device] = held
        return held

    @classmethod
    def reserve(cls, *, rows: int, adapters: int, device: torch.device) -> DevicePlan:
        """A plan with room for any `rows` rows of at most `adapters` adapters."""
        adapters = min(rows, adapters)
        # every adapter may end with a tile that is not full
        counts = tuple((rows - adapters) // size + adapters for size in (DECODE_ROWS, MMA_ROWS, CHUNK_ROWS))
        return cls(rows, adapters, counts, device)  # pyright: ignore[reportArgumentType]

    def load(self, plan: RowPlan) -> None:
        """Take another step's rows. One copy, in order with the current stream's work, and nothing is waited for.

        Raises:
            KernelError: There is no room for so many rows or adapters.
        """
        held = plan.order.shape[0]
        if held > self.positions or len(plan.segments) > self.adapters:
            raise KernelError(
                f"a plan of {held} rows and {len(plan.segments)} adapters was loaded where there is room for "
                f"{self.positions} rows and {self.adapters} adapters; reserve more"
            )
        host = np.zeros(self._ends[-1], dtype=np.int32)
        host[:held] = plan.order
        for start, size in zip(self._ends, (DECODE_ROWS, MMA_ROWS, CHUNK_ROWS), strict=False):
            tiles = np.array([(*tile, 0) for tile in plan.tiles(size)], dtype=np.int32).reshape(-1)
            host[start : start + tiles.shape[0]] = tiles
        host[self._ends[3] : self._ends[3] + 4 * len(plan.segments)] = _segments(plan)
        PinnedRing.of(self._buffer.device).copy(host, self._buffer)
        self.rows = plan.rows


def order_on(plan: RowPlan, device: torch.device) -> Tensor:
    """The plan's `order` as an index there, [n] int64."""
    order = torch.from_numpy(plan.order)
    if device.type == "cpu":
        return order
    key = ("order", device)
    held = plan.on_devices.get(key)
    if not isinstance(held, Tensor):
        held = plan.on_devices[key] = order.to(device)
    return held


def _segments(plan: RowPlan) -> NDArray[np.int32]:
    chunks = np.array([-(-segment.count // CHUNK_ROWS) for segment in plan.segments], dtype=np.int32)
    firsts = np.cumsum(chunks) - chunks
    slots = np.array([segment.slot for segment in plan.segments], dtype=np.int32)
    return np.stack([slots, firsts, chunks, np.zeros_like(chunks)], axis=1).reshape(-1).astype(np.int32)


def _whole(count: int) -> int:
    """Rounded up so that what follows is 16-byte aligned, and never nothing."""
    return max(4, -(-count // 4) * 4)


class PinnedRing:
    """Copies small host arrays to one device without waiting, through pinned buffers that take turns.

    A buffer is written again only once the copy out of it has been made. For the CPU it is a plain copy.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: list[tuple[Tensor, torch.cuda.Event] | None] = [None] * _RING
        self._next = 0
        self._lock = threading.Lock()

    @classmethod
    @functools.cache
    def of(cls, device: torch.device) -> PinnedRing:
        """The ring that everyone in this process shares for a device."""
        return cls(device)

    def copy(self, array: NDArray[np.generic], to: Tensor) -> None:
        """Copy a contiguous array into a tensor of the same number of bytes.

        Raises:
            KernelError: A CUDA graph is being captured: the copy would be replayed with what the buffer holds then.
        """
        source = torch.from_numpy(array.reshape(-1).view(np.uint8))
        target = to.view(-1).view(torch.uint8)
        if self._device.type != "cuda":
            target.copy_(source)
            return
        if torch.cuda.is_current_stream_capturing():
            raise KernelError("a plan or table was loaded while a CUDA graph is captured; load it before")
        with self._lock, torch.cuda.device(self._device):
            held = self._buffers[self._next]
            if held is not None:
                held[1].synchronize()
            if held is None or held[0].numel() < source.numel():
                size = 1 << max(12, (source.numel() - 1).bit_length())
                held = (torch.empty(size, dtype=torch.uint8, pin_memory=True), torch.cuda.Event())
                self._buffers[self._next] = held
            self._next = (self._next + 1) % _RING
            pinned, copied = held
            pinned[: source.numel()].copy_(source)
            target.copy_(pinned[: source.numel()], non_blocking=True)
            copied.record()
