"""The adapters of one model's layers where kernels add them: tables of pointers that stay from step to step.

What `adapter_stacks` is on the CPU. A step has one plan of its rows, which every layer launches with; layers that read
the same input share a launch. Ranks may mix in a table.

Shape suffixes: T rows of the step, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tinker_actors.kernels import NO_ADAPTER, Path, Projection, RowPlan, lora_residuals
from tinker_actors.kernels.backend import Backend
from tinker_actors.kernels.device_plan import DevicePlan
from tinker_actors.kernels.dispatch import choose_path
from tinker_actors.kernels.launcher import Launcher
from tinker_actors.kernels.on_kernels import launch_residual
from tinker_actors.kernels.tables import MAX_RANK, AdapterTable
from tinker_actors.sampling.adapter_stacks import Place

_LEAST_SLOTS = 8

Part = tuple[Tensor, Tensor, float]
"""A [rank, in], B [out, rank] and the scale of one layer."""


def plan_rows(slots: Sequence[int], places: dict[int, Place]) -> list[RowPlan]:
    """The plan of a step's rows, or none where no row has an adapter.

    Args:
        slots: The adapter of each row, negative for none.
        places: Where adapters lie.
    """
    plan = RowPlan.build([places[slot].index if slot >= 0 else NO_ADAPTER for slot in slots])
    return [plan] if plan.slots else []


class LayerTables:
    """The adapters of one layer, or of up to three that read the same input.

    Args:
        backend: What starts kernels.
        device: Where the layers are.
        outputs: Width of each layer's output.
    """

    def __init__(self, backend: Backend, device: torch.device, outputs: Sequence[int]) -> None:
        self._backend, self._device, self._outputs = backend, device, list(outputs)
        self._parts: dict[int, list[Part | None]] = {}
        self._slots = 0
        self._table: AdapterTable | None = None

    def put(self, place: Place, parts: Sequence[Part | None]) -> None:
        """Install an adapter: what it has for each layer."""
        slot = place.index
        self._parts.pop(slot, None)
        self._slots = max(self._slots, slot + 1)
        if any(parts):
            self._parts[slot] = [_on(part, self._device) for part in parts]
        self._write(slot)

    def clear(self, place: Place) -> None:
        """Take an adapter out."""
        if self._parts.pop(place.index, None) is not None:
            self._write(place.index)

    def add(self, y_to: Tensor, x_ti: Tensor, plan: RowPlan) -> None:
        """Add each row's adapter to its output, in place."""
        held = [part for slot in plan.slots for part in self._parts.get(slot, ()) if part is not None]
        if not held:
            return
        ranks = [a_ri.shape[0] for a_ri, _, _ in held]
        path = choose_path(plan, ranks, same_dtype=x_ti.dtype == torch.float32, gradients=False)
        ys_to = list(y_to.split(self._outputs, dim=1))
        if self._table is None or path is Path.PRODUCTS:
            lora_residuals(self._projections(ys_to), x_ti, plan, path=Path.PRODUCTS)
            return
        device_plan = DevicePlan.of(plan, self._device)
        launcher = Launcher(self._backend, device_plan, self._table, x_ti.dtype, self._device)
        launch_residual(launcher, ys_to, x_ti, path)

    def _write(self, slot: int) -> None:
        ranks = [part[0].shape[0] for parts in self._parts.values() for part in parts if part is not None]
        highest = max(ranks, default=0)
        if not ranks or highest > MAX_RANK:  # there are no kernels for such ranks
            self._table = None
            return
        changed = [slot]
        if self._table is None or self._table.slots < self._slots or self._table.max_rank < highest:
            size = max(_LEAST_SLOTS, 1 << (self._slots - 1).bit_length())
            self._table = AdapterTable(
                slices=len(self._outputs), slots=size, dtype=torch.float32, device=self._device, max_rank=highest
            )
            changed = list(self._parts)
        for entry in changed:
            self._table.clear(entry)
            for number, part in enumerate(self._parts.get(entry, ())):
                if part is not None:
                    self._table.set(number, entry, *part)
        self._table.upload()

    def _projections(self, ys_to: Sequence[Tensor]) -> list[Projection]:
        def of(slot: int, number: int) -> Part | None:
            return self._parts[slot][number] if slot in self._parts else None

        found: list[Projection] = []
        for number, y_to in enumerate(ys_to):
            parts = [of(slot, number) for slot in range(self._slots)]
            found.append(
                Projection(
                    y_TO=y_to,
                    a_slots=[part and part[0] for part in parts],
                    b_slots=[part and part[1] for part in parts],
                    scales=[part[2] if part else 0.0 for part in parts],
                )
            )
        return found


def _on(part: Part | None, device: torch.device) -> Part | None:
    return None if part is None else (part[0].to(device), part[1].to(device), part[2])
