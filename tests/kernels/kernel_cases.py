"""Batches for the emulated kernels: built in guarded memory, run through `lora_residuals`, compared with float64.

Shapes: T rows, I inputs, O outputs, R the adapter's rank.
"""
# ruff: noqa: N803, N806, N815 - tensor names end in their shape

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from emulator import Emulator, guarded
from torch import Tensor

from tinker_actors.kernels import Path, Projection, RowPlan, lora_residuals
from tinker_actors.kernels.backend import kernels_on_cpu
from tinker_actors.kernels.source import Types

DTYPES = {"float": torch.float32, "ta_bf16": torch.bfloat16, "ta_half": torch.float16}


@dataclass(kw_only=True)
class Batch:
    """Rows of several adapters, for one to three projections.

    Attributes:
        x_TI: The rows.
        ys_TO: What the residuals are added to.
        slots: Each row's adapter.
        a_slots: For each projection, A of each slot.
        b_slots: Likewise B.
        scales: Of each slot.
    """

    x_TI: Tensor
    ys_TO: list[Tensor]
    slots: Sequence[int]
    a_slots: list[list[Tensor | None]]
    b_slots: list[list[Tensor | None]]
    scales: list[float] = field(default_factory=list)

    def run(self, device: Emulator, path: Path) -> list[Tensor]:
        """The outputs, by the kernels of this way; the batch's own stay as they are."""
        ys_TO = [guarded(y_TO) for y_TO in self.ys_TO]
        with kernels_on_cpu(device):
            return lora_residuals(self.projections(ys_TO), self.x_TI, RowPlan.build(self.slots), path=path)

    def projections(self, ys_TO: Sequence[Tensor]) -> list[Projection]:
        """The projections with these outputs."""
        return [
            Projection(y_TO=y_TO, a_slots=a, b_slots=b, scales=self.scales)
            for y_TO, a, b in zip(ys_TO, self.a_slots, self.b_slots, strict=True)
        ]

    def rows_of(self, rows: Sequence[int]) -> Batch:
        """These rows alone."""
        return Batch(
            x_TI=guarded(self.x_TI[list(rows)]),
            ys_TO=[guarded(y_TO[list(rows)]) for y_TO in self.ys_TO],
            slots=[self.slots[row] for row in rows],
            a_slots=self.a_slots,
            b_slots=self.b_slots,
            scales=self.scales,
        )

    def check(self, outputs: Sequence[Tensor], path: Path) -> None:
        """Raises AssertionError where an output is further from float64 than one rounding and the way's sums allow."""
        slack = slack_of(path, self.x_TI.dtype)
        for at, (y_TO, output_TO) in enumerate(zip(self.ys_TO, outputs, strict=True)):
            expected, size = y_TO.double().clone(), y_TO.double().abs()
            for row, slot in enumerate(self.slots):
                a_RI = self.a_slots[at][slot] if slot >= 0 else None
                b_OR = self.b_slots[at][slot] if slot >= 0 else None
                if a_RI is not None and b_OR is not None:
                    a, b, x = a_RI.double(), b_OR.double(), self.x_TI[row].double()
                    expected[row] += self.scales[slot] * (b @ (a @ x))
                    size[row] += abs(self.scales[slot]) * (b.abs() @ (a.abs() @ x.abs()))
            half_unit = torch.finfo(output_TO.dtype).eps / 2
            error = (output_TO.double() - expected).abs()
            assert not error.isnan().any(), f"projection {at}: NaN"
            excess = error - half_unit * expected.abs() * 1.01 - slack * size
            row, column = divmod(int(excess.argmax()) if excess.numel() else 0, output_TO.shape[1])
            assert not (excess > 0).any(), (
                f"projection {at} row {row} (slot {self.slots[row]}) column {column}: "
                f"{output_TO[row, column].item()} where {expected[row, column].item()} is right"
            )
            untouched = [row for row, slot in enumerate(self.slots) if slot < 0 or self.a_slots[at][slot] is None]
            assert torch.equal(bits(output_TO[untouched]), bits(y_TO[untouched]))


def slack_of(path: Path, rows: torch.dtype) -> float:
    """How far sums may be off, as a share of the sum of absolute values.

    The decode kernels sum in float32. Tensor cores multiply planes of bfloat16, of which rows of 16 bits leave out
    those of 2^-17 and below in either product, far less than their own rounding.
    """
    if path is Path.DECODE:
        return 3e-7
    return 1e-6 if rows == torch.float32 else 2e-5


def bits(tensor: Tensor) -> Tensor:
    """As integers, so that equality is of every bit."""
    return tensor.contiguous().view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def same_bits(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether two lists of tensors agree in every bit."""
    return all(torch.equal(bits(one), bits(other)) for one, other in zip(some, others, strict=True))


def batch(
    types: Types,
    slots: Sequence[int],
    ranks: Sequence[int],
    *,
    inputs: int,
    outputs: Sequence[int],
    seed: int = 0,
    b_by_rank: bool = False,
) -> Batch:
    """Random rows and adapters.

    Args:
        types: Of rows and weights.
        slots: An adapter for each row, or a negative number.
        ranks: Of each slot's adapter; 0 for one that leaves the projections alone.
        inputs: I.
        outputs: O of each projection.
        seed: Of all of it.
        b_by_rank: B is the transpose of a contiguous matrix.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(rows: int, columns: int, name: str, size: float = 1.0) -> Tensor:
        return (size * torch.randn(rows, columns, generator=generator)).to(DTYPES[name])

    def adapter(rank: int, width: int) -> tuple[Tensor | None, Tensor | None]:
        if rank == 0:
            return None, None
        a_RI = guarded(random(rank, inputs, types.weights, inputs**-0.5))
        if b_by_rank:
            return a_RI, guarded(random(rank, width, types.weights)).t()
        return a_RI, guarded(random(width, rank, types.weights))

    adapters = [[adapter(rank, width) for rank in ranks] for width in outputs]
    return Batch(
        x_TI=guarded(random(len(slots), inputs, types.rows)),
        ys_TO=[guarded(random(len(slots), width, types.rows)) for width in outputs],
        slots=slots,
        a_slots=[[a_RI for a_RI, _ in of_one] for of_one in adapters],
        b_slots=[[b_OR for _, b_OR in of_one] for of_one in adapters],
        scales=[0.5 + slot for slot in range(len(ranks))],
    )
