"""Many LoRA adapters over one base in one pass: each token row is answered by its own adapter, or by none.

Samplers load adapters from directories; a trainer attaches the ones in training, and gradients flow to them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from tinker_actors.errors import ModelError
from tinker_actors.kernels import RowPlan, lora_residual
from tinker_actors.models.adapters import Adapter, AdapterWeights, read_adapter
from tinker_actors.models.vision import TOWER

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class _Step:
    """What all layers of one model share: the plan of the forward pass under way."""

    def __init__(self) -> None:
        self.plan: RowPlan | None = None
        self.ends: RowPlan | None = None


class MultiLoraLinear(nn.Module):
    """A frozen linear layer plus, for each row, the residual of the row's adapter.

    Attributes:
        base: The layer that was replaced.
    """

    def __init__(self, base: nn.Linear, step: _Step) -> None:
        super().__init__()
        self.base = base
        self._step = step
        self._a: list[Tensor | None] = []
        self._b: list[Tensor | None] = []
        self._scales: list[float] = []
        self._held = 0

    @property
    def weight(self) -> Tensor:
        """The base layer's weight, [out, in]."""
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        """The base layer's bias, [out], or None."""
        return self.base.bias

    @property
    def in_features(self) -> int:
        """Width of the input."""
        return self.base.in_features

    @property
    def out_features(self) -> int:
        """Width of the output."""
        return self.base.out_features

    def plan(self, rows: int) -> RowPlan | None:
        """The plan for an input of this many rows."""
        del rows
        return self._step.plan

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]; the leading dimensions, flattened, are the rows of the step's plan."""
        plan = self.plan(x.numel() // x.shape[-1])
        if plan is None or not self._held:
            return self.base(x)
        rows = x.reshape(-1, x.shape[-1])
        answers = lora_residual(self.base(rows), rows, plan, self._a, self._b, self._scales)
        return answers.view(*x.shape[:-1], -1)

    def install(self, slot: int, weights: AdapterWeights | None) -> None:
        """Put an adapter's share of this layer in a slot; None leaves the layer as it is for that slot."""
        while len(self._a) <= slot:
            self._a.append(None)
            self._b.append(None)
            self._scales.append(0.0)
        self._held += (weights is not None) - (self._a[slot] is not None)
        self._a[slot] = weights.a if weights else None
        self._b[slot] = weights.b if weights else None
        self._scales[slot] = weights.scale if weights else 0.0


class MultiLoraHead(MultiLoraLinear):
    """The output head, which may be asked for the last token of each sequence alone."""

    def plan(self, rows: int) -> RowPlan | None:
        """The plan for all tokens, or for one token of each sequence."""
        plan, ends = self._step.plan, self._step.ends
        return ends if plan is not None and ends is not None and rows == ends.rows != plan.rows else plan


class MultiLoraModel:
    """A model whose linear layers serve many adapters at once.

        lora = MultiLoraModel(load_base("tiny-llama").skeleton())
        first, second = lora.load(path_of_a_peft_directory), lora.load(another)
        with torch.inference_mode(), lora.using([first, second, NO_ADAPTER], tokens_per_row=tokens_BT.shape[1]):
            logits = lora.model(tokens_BT).logits

    Adapters keep float32 weights over a base of any dtype. A vision tower is not adapted.
    Forward passes of one object must not overlap in time: the plan is the object's.

    Args:
        skeleton: A model that nobody else uses (`BaseModel.skeleton()`); its layers are replaced.
        capacity: Most adapters held at once, or None for no limit.

    Attributes:
        model: The model with the layers replaced.
    """

    def __init__(self, skeleton: PreTrainedModel, *, capacity: int | None = None) -> None:
        self.model = skeleton
        self._capacity = capacity
        self._step = _Step()
        self._residents: dict[int, Adapter] = {}
        self._layers: dict[str, MultiLoraLinear] = {}
        head = skeleton.get_output_embeddings()
        for path, module in list(skeleton.named_modules()):
            if path.startswith(f"{TOWER}."):  # its rows are patches, which belong to no row of the batch
                continue
            if isinstance(module, nn.Linear):
                kind = MultiLoraHead if module is head else MultiLoraLinear
                self._layers[path] = kind(module, self._step)
                skeleton.set_submodule(path, self._layers[path])

    @property
    def slots(self) -> tuple[int, ...]:
        """Slots that hold an adapter, ascending."""
        return tuple(sorted(self._residents))

    @property
    def resident(self) -> int:
        """How many adapters are held."""
        return len(self._residents)

    def load(self, path: str | Path | Adapter) -> int:
        """Load a PEFT directory, or an adapter as one was read from it, into the lowest free slot and return the slot.

        Raises:
            ModelError: The directory is not a LoRA adapter of this base, asks for something that is not supported,
                or there is no free slot. Nothing has changed then.
        """
        if self._capacity is not None and self.resident >= self._capacity:
            raise ModelError(f"all {self._capacity} adapter slots are taken; unload one before loading {path}")
        if isinstance(path, Adapter):
            return self._install(path)
        shapes = {path: (layer.in_features, layer.out_features) for path, layer in self._layers.items()}
        heads = [path for path, layer in self._layers.items() if isinstance(layer, MultiLoraHead)]
        return self._install(read_adapter(Path(path), shapes, head=heads[0] if heads else None))

    @contextlib.contextmanager
    def attached(self, adapters: Sequence[Adapter]) -> Iterator[list[int]]:
        """Hold adapters for a while, each in a slot of its own; yields the slots.

        Their tensors are used as they are, not copied: those that require gradients get them from the passes within.

        Raises:
            ModelError: An adapter has weights for a layer that can't be adapted here.
        """
        for adapter in adapters:
            if unknown := [path for path in adapter.weights if path not in self._layers]:
                raise ModelError(f"{adapter.path} adapts {unknown[0]}, which is not an adaptable layer here")
        slots = [self._install(adapter) for adapter in adapters]
        try:
            yield slots
        finally:
            for slot in slots:
                self.unload(slot)

    def unload(self, slot: int) -> None:
        """Free a slot and the adapter's memory; the slot number may be given out again.

        Raises:
            ModelError: The slot is empty, or the forward pass under way uses it.
        """
        if slot not in self._residents:
            raise ModelError(f"slot {slot} holds no adapter; those that do are {list(self.slots)}")
        if self._step.plan is not None and slot in self._step.plan.slots:
            raise ModelError(f"slot {slot} is in use by the forward pass under way")
        for layer in self._layers.values():
            layer.install(slot, None)
        del self._residents[slot]

    def _install(self, adapter: Adapter) -> int:
        slot = next(slot for slot in range(self.resident + 1) if slot not in self._residents)
        for module, layer in self._layers.items():
            layer.install(slot, adapter.weights.get(module))
        self._residents[slot] = adapter
        return slot

    @contextlib.contextmanager
    def using(self, slots: Sequence[int], *, tokens_per_row: int | Sequence[int] = 1) -> Iterator[RowPlan]:
        """Answer with these adapters in the forward passes within.

        Args:
            slots: A slot for each row of the batch; `NO_ADAPTER` for the base alone.
            tokens_per_row: Tokens of each batch row (the padded length of the batch), or one number per row.

        Raises:
            ModelError: A slot holds no adapter, or passes overlap.
            KernelError: Raised by the forward pass if its rows are not those of the plan.
        """
        plan = RowPlan.build(slots, tokens_per_row=tokens_per_row)
        if empty := [slot for slot in plan.slots if slot not in self._residents]:
            raise ModelError(f"slots {empty} hold no adapter; those that do are {list(self.slots)}")
        if self._step.plan is not None:
            raise ModelError("a forward pass is under way already")
        self._step.plan, self._step.ends = plan, RowPlan.build(slots)
        try:
            yield plan
        finally:
            self._step.plan = self._step.ends = None
