"""Where the kernels find the adapters of a group of projections: pointers, strides, ranks and scales, by slot."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tinker_actors.kernels.device_plan import PinnedRing
from tinker_actors.kernels.plan import KernelError
from tinker_actors.kernels.source import RANK_BOUNDS, SLICES, Types

ADAPTER = np.dtype(
    [
        ("a", np.uint64),
        ("b", np.uint64),
        ("a_rank", np.int64),
        ("a_in", np.int64),
        ("b_out", np.int64),
        ("b_rank", np.int64),
        ("rank", np.int32),
        ("scale", np.float32),
    ],
    align=True,
)
"""`ta_adapter` in layout.cuh."""

TYPE_NAMES = {torch.float32: "float", torch.bfloat16: "ta_bf16", torch.float16: "ta_half"}
"""The kernels' names of the types that they exist for."""

MAX_RANK = RANK_BOUNDS[-1]
"""Highest rank that the kernels exist for."""


class AdapterTable:
    """The adapters of one to three projections that share their input, for every slot.

    Entries are set on the host and become the kernels' with `upload`. A captured CUDA graph reads the table at every
    replay, so adapters come and go without another capture; ranks stay within `max_rank`.

    Args:
        slices: Projections, 1 to 3.
        slots: Slots.
        dtype: Of the weights.
        device: Where the adapters are.
        max_rank: Highest rank that will ever be held, 1 to 128.

    Attributes:
        slices: Projections.
        slots: Slots.
        dtype: Of the weights.
        max_rank: Highest rank.
        bound: Lowest rank that kernels are compiled for and `max_rank` fits in.

    Raises:
        KernelError: Numbers out of range, or a dtype other than float32, bfloat16 and float16.
    """

    def __init__(self, *, slices: int, slots: int, dtype: torch.dtype, device: torch.device, max_rank: int) -> None:
        if not 1 <= slices <= SLICES:
            raise KernelError(f"{slices} projections were put in one table; 1 to {SLICES} may share a launch")
        if not 1 <= max_rank <= MAX_RANK:
            raise KernelError(f"max_rank is {max_rank}; the kernels exist for ranks 1 to {MAX_RANK}")
        if dtype not in TYPE_NAMES:
            raise KernelError(f"weights are {dtype}; the kernels exist for {', '.join(map(str, TYPE_NAMES))}")
        self.slices, self.slots, self.dtype, self.max_rank = slices, slots, dtype, max_rank
        self.bound = next(bound for bound in RANK_BOUNDS if bound >= max_rank)
        self._host = np.zeros((slices, slots), dtype=ADAPTER)
        self._device = device
        self._buffer: Tensor | None = None
        # what the pointers point to must live as long as they do
        self._held: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def address_of(self, slice: int) -> int:
        """Where a projection's entries begin on the device.

        Raises:
            KernelError: Nothing was uploaded yet.
        """
        if self._buffer is None:
            raise KernelError("a table of adapters is used before its first upload")
        return self._buffer.data_ptr() + slice * self.slots * ADAPTER.itemsize

    def set(self, slice: int, slot: int, a_RI: Tensor, b_OR: Tensor, scale: float) -> None:  # noqa: N803
        """Enter an adapter's share of a projection. The tensors are used as they are where their layout allows.

        Args:
            slice: Which of the projections.
            slot: The adapter's slot.
            a_RI: [rank, in].
            b_OR: [out, rank].
            scale: Factor.

        Raises:
            KernelError: The shapes don't belong together, or the rank or dtype isn't this table's.
        """
        rank = a_RI.shape[0]
        if a_RI.dim() != 2 or b_OR.dim() != 2 or b_OR.shape[1] != rank or not 1 <= rank <= self.max_rank:
            raise KernelError(
                f"slot {slot}: A {tuple(a_RI.shape)}, B {tuple(b_OR.shape)} in a table of ranks up to {self.max_rank}"
            )
        if a_RI.dtype != self.dtype or b_OR.dtype != self.dtype:
            raise KernelError(f"slot {slot}: A is {a_RI.dtype} and B {b_OR.dtype} in a table of {self.dtype}")
        a = a_RI.detach() if a_RI.stride(1) == 1 else a_RI.detach().contiguous()
        b = b_OR.detach() if 1 in b_OR.stride() else b_OR.detach().contiguous()
        entry = self._host[slice, slot]
        entry["a"], entry["b"], entry["rank"], entry["scale"] = a.data_ptr(), b.data_ptr(), rank, scale
        # a stride along an axis of length 1 says nothing; 0 keeps whole 16-byte accesses possible
        entry["a_rank"], entry["a_in"] = (a.stride(0) if rank > 1 else 0), 1
        entry["b_out"], entry["b_rank"] = b.stride() if rank > 1 else (b.stride(0), 0)
        self._held[slice, slot] = (a, b)

    def clear(self, slot: int) -> None:
        """Take an adapter out of all projections. The device still reads it until the next `upload`'s copy is made."""
        for slice in range(self.slices):
            self._host[slice, slot] = np.zeros((), dtype=ADAPTER)
            self._held.pop((slice, slot), None)

    def upload(self) -> None:
        """Make the entries the kernels': one copy, in order with the current stream's work."""
        if self._buffer is None:
            self._buffer = torch.empty(self._host.nbytes, dtype=torch.uint8, device=self._device)
        PinnedRing.of(self._device).copy(self._host, self._buffer)

    def types(self, rows: torch.dtype) -> Types:
        """The types of a launch whose rows are of this dtype.

        Raises:
            KernelError: There are no kernels for such rows with such weights.
        """
        if rows not in TYPE_NAMES or self.dtype not in (rows, torch.float32):
            raise KernelError(f"there are no kernels for {rows} rows with {self.dtype} weights")
        return Types(TYPE_NAMES[rows], TYPE_NAMES[self.dtype])
