"""Matrices with adapters for the GPU's checks, and what they should give, in float64.

Shapes: T rows, I inputs, O outputs, R the adapter's rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinker_actors.kernels import Projection, RowPlan, lora_residuals


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of several adapters, for projections that share them.

    Attributes:
        x: [rows, inputs].
        ys: [rows, outputs] for each projection.
        slots: Each row's adapter, -1 for none.
        a: For each projection, [rank, inputs] of each slot.
        b: For each projection, [outputs, rank] of each slot.
        scales: Of each slot.
    """

    x: Tensor
    ys: list[Tensor]
    slots: list[int]
    a: list[list[Tensor]]
    b: list[list[Tensor]]
    scales: list[float]

    @classmethod
    def build(
        cls,
        rows: int,
        inputs: int,
        outputs: Sequence[int],
        ranks: Sequence[int],
        dtypes: tuple[torch.dtype, torch.dtype],
        device: torch.device,
        *,
        idle: float = 0.2,
        seed: int = 0,
    ) -> Batch:
        """Random rows, of which a part `idle` has no adapter; row strides are wider than rows."""
        generator = torch.Generator().manual_seed(seed)
        row_dtype, weight_dtype = dtypes

        def matrix(height: int, width: int, dtype: torch.dtype, pad: int = 0) -> Tensor:
            values = torch.randn(height, width + pad, generator=generator)
            return values.to(device=device, dtype=dtype)[:, :width]

        slots = torch.randint(len(ranks), (rows,), generator=generator)
        slots[torch.rand(rows, generator=generator) < idle] = -1
        return cls(
            x=matrix(rows, inputs, row_dtype, 8),
            ys=[matrix(rows, width, row_dtype, 8) for width in outputs],
            slots=slots.tolist(),
            a=[
                [(matrix(rank, inputs, torch.float32) / inputs**0.5).to(weight_dtype) for rank in ranks]
                for _ in outputs
            ],
            b=[[matrix(width, rank, weight_dtype) for rank in ranks] for width in outputs],
            scales=[0.5 + 0.25 * (slot % 4) for slot in range(len(ranks))],
        )

    def projections(self, ys: Sequence[Tensor]) -> list[Projection]:
        """The projections, with these outputs."""
        return [
            Projection(y_TO=y, a_slots=a, b_slots=b, scales=self.scales)
            for y, a, b in zip(ys, self.a, self.b, strict=True)
        ]

    def leaves(self) -> list[Tensor]:
        """What gradients go to: the rows, then every A and B."""
        return [self.x, *(weight for side in (self.a, self.b) for slots in side for weight in slots)]

    def exact(self) -> Batch:
        """The same in float64 on the CPU, where torch's products are the way."""

        def double(tensor: Tensor) -> Tensor:
            return tensor.detach().double().cpu().requires_grad_(tensor.requires_grad)

        return Batch(
            x=double(self.x),
            ys=[double(y) for y in self.ys],
            slots=self.slots,
            a=[[double(weight) for weight in slots] for slots in self.a],
            b=[[double(weight) for weight in slots] for slots in self.b],
            scales=self.scales,
        )

    def wanted(self) -> list[Tensor]:
        """The outputs in float64."""
        exact = self.exact()
        with torch.no_grad():
            return lora_residuals(exact.projections(exact.ys), exact.x, RowPlan.build(self.slots))


def error(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, as a part of the largest value wanted."""
    largest = wanted.abs().max().item()
    return (found.detach().double().cpu() - wanted).abs().max().item() / max(largest, 1e-30)
