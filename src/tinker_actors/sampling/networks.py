"""What turns token ids into logits: one network per set of weights that can share a forward pass.

Shape suffixes: T rows of a step, W rows whose logits are wanted, V vocabulary.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from tinker_actors.data import ModelInput
from tinker_actors.errors import ModelError
from tinker_actors.kernels import NO_ADAPTER
from tinker_actors.models.adapters import Adapter, read_adapter
from tinker_actors.models.vision import TOWER, Vision
from tinker_actors.sampling.adapter_stacks import Place
from tinker_actors.sampling.attention import Step, StepHolder, install
from tinker_actors.sampling.kv_pool import KVPool, KVShape
from tinker_actors.sampling.lean import LeanDecoder
from tinker_actors.sampling.linears import Plans, replace_linears, widen
from tinker_actors.sampling.runs import Span, runs_of
from tinker_actors.sampling.weights import wide_products

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_TRIED_TOKENS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The active-token matrix of a step.

    Attributes:
        ids: Token ids.
        positions: Rotary positions, shape (T,); or (3, T) in a model that reads images.
        spans: Which sequences the rows belong to, in order.
        slots: The adapter of each row.
        wanted: Rows whose logits are wanted.
        images: The rows as inputs with their images, in order, where images are among them.
    """

    ids: Sequence[int]
    positions: Tensor
    spans: Sequence[Span]
    slots: Sequence[int]
    wanted: Sequence[int]
    images: Sequence[ModelInput] = ()


class Network:
    """A model whose attention reads a pool, and whose rows may each have an adapter of their own.

    Attributes:
        vision: How the model takes images; None if it reads none.
        config: The transformers configuration.
        vocab_size: Length of a row of logits.
        dtype: Of keys and values.
        device: Where the weights are, and what it computes.
        kv_shape: What its layers keep for a token.
        nbytes: Memory of the weights that it was made of, tied ones once.

    Args:
        model: Nobody else's; its layers are replaced.
        vision: The model's.
        owned: Whether its weights are nobody else's either: those that are held in another form are given up.

    Raises:
        ModelError: The model's attention can't be computed here.
    """

    def __init__(self, model: PreTrainedModel, vision: Vision | None = None, *, owned: bool = False) -> None:
        self._model, self.vision = model, vision
        self.config: PretrainedConfig = model.config
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        self.dtype = next(model.parameters()).dtype
        self.nbytes = sum(parameter.nbytes for parameter in model.parameters())
        self.device = next(model.parameters()).device
        self._plans, self._holder = Plans(self.device), StepHolder()
        self._adapters: dict[int, Place] = {}
        self._taken: dict[int, set[int]] = {}
        self._lean: LeanDecoder | None = None
        expected = self._try_original()
        layers = install(model, self._holder)
        wide = vision is None and wide_products(self.dtype, self.device)
        lean = LeanDecoder.fits(model)
        orders = LeanDecoder.orders(model) if lean else {}
        self._products = replace_linears(model, (TOWER,), self._plans, wide=wide, owned=owned, orders=orders)
        if wide:
            widen(model)
        if owned:
            _settle_weights(model)
        self._lean = LeanDecoder(model, self._holder) if lean else None
        # fewer rows than this are computed otherwise by some product
        self._least_rows = max((product.least_rows for product, _ in self._products.values()), default=1)
        self.kv_shape = self._try(layers, expected)

    @property
    def resident(self) -> int:
        """How many adapters are held."""
        return len(self._adapters)

    def read(self, path: Path) -> Adapter:
        """Read a PEFT directory; may run beside a forward pass.

        Raises:
            ModelError: It is no LoRA adapter of this base.
        """
        shapes = {path: (product.inputs, product.outputs[number]) for path, (product, number) in self._products.items()}
        heads = [path for path, (product, _) in self._products.items() if product.is_head]
        return read_adapter(path, shapes, head=heads[0] if heads else None)

    def place(self, adapter: Adapter) -> int:
        """Install an adapter and return its slot.

        Raises:
            ModelError: It adapts a layer that can't be adapted here.
        """
        if unknown := [path for path in adapter.weights if path not in self._products]:
            raise ModelError(f"{adapter.path} adapts {unknown[0]}, which is not an adaptable layer here")
        rank = self._plans.rank_class(max(weights.a.shape[0] for weights in adapter.weights.values()))
        taken = self._taken.setdefault(rank, set())
        index = next(number for number in range(len(taken) + 1) if number not in taken)
        place = Place(rank, index)
        parts: dict[int, list[tuple[Tensor, Tensor, float] | None]] = {}
        for path, (product, number) in self._products.items():
            own = parts.setdefault(id(product), [None] * len(product.outputs))
            if (weights := adapter.weights.get(path)) is not None:
                own[number] = (weights.a, weights.b, weights.scale)
        for product in {id(product): product for product, _ in self._products.values()}.values():
            product.put(place, parts[id(product)])
        taken.add(index)
        slot = next(number for number in range(len(self._adapters) + 1) if number not in self._adapters)
        self._adapters[slot] = place
        return slot

    def load(self, path: Path) -> int:
        """Read and install a PEFT directory and return its slot.

        Raises:
            ModelError: It is no LoRA adapter of this base; nothing has changed then.
        """
        return self.place(self.read(path))

    def unload(self, slot: int) -> None:
        """Free a slot that no row uses any more."""
        place = self._adapters.pop(slot)
        self._taken[place.rank].discard(place.index)
        for product in {id(product): product for product, _ in self._products.values()}.values():
            product.stacks.clear(place)

    def logits(self, rows: Rows, pool: KVPool) -> Tensor:
        """Compute a step; the keys and values of its rows are in the pool afterwards.

        Returns:
            Logits of the wanted rows, shape (W, V), where the model is.
        """
        device = self.device
        count = len(rows.ids)
        padding = max(0, self._least_rows - count)
        wanted = list(rows.wanted)
        some = wanted + [len(rows.ids) + padding - 1] * max(0, self._least_rows - len(wanted))
        places_t = torch.tensor(
            [span.start + span.held + n for span in rows.spans for n in range(span.count)], device=device
        )
        slots = [*rows.slots, *([NO_ADAPTER] * padding)]
        ids_t, keep_w = torch.tensor([*rows.ids, *([0] * padding)], device=device), torch.tensor(some, device=device)
        positions, order_t = F.pad(rows.positions, (0, padding)).to(device), None
        if self._adapters:
            self._plans.tiles = self._plans.of(slots, self._adapters)
            self._plans.head = self._plans.of([slots[row] for row in some], self._adapters)
            if not padding and not rows.images:
                order_t = self._plans.arrange()
        if order_t is not None:
            ids_t, positions, places_t = ids_t[order_t], positions[..., order_t], places_t[order_t]
            keep_w = order_t.argsort()[keep_w]
        self._holder.step = Step(pool=pool, places_t=places_t, runs=runs_of(rows.spans), rows=count, order_t=order_t)
        extra = self.vision.arguments(self._model, rows.images) if self.vision is not None and rows.images else {}
        try:
            # packed weights are objects of torch's own that, as arguments, are asked for an override of the call each
            # time, which takes longer than a small product
            with torch._C.DisableTorchFunctionSubclass():
                logits_wv = self._forward(ids_t, positions, keep_w, extra)
        finally:
            self._holder.step, self._plans.tiles, self._plans.head = None, [], []
        logits_wv = logits_wv[: len(wanted)]
        return logits_wv if self.vision is None else self.vision.suppress(logits_wv)

    def _forward(self, ids: Tensor, positions: Tensor, keep: Tensor, extra: dict[str, object]) -> Tensor:
        if self._lean is not None:
            return self._lean(ids, positions, keep)
        output = self._model(
            input_ids=ids[None],
            position_ids=positions[:, None] if positions.dim() == 2 else positions[None],
            use_cache=False,
            logits_to_keep=keep,
            **extra,
        )
        return output.logits[0]

    def _positions(self) -> Tensor:
        positions = torch.arange(_TRIED_TOKENS)
        return positions if self.vision is None else positions.expand(3, -1)

    def _try_original(self) -> Tensor:
        with torch.inference_mode():
            ids_t, kept_t = torch.tensor(self._ids(), device=self.device), torch.arange(_TRIED_TOKENS)
            return self._forward(ids_t, self._positions().to(self.device), kept_t.to(self.device), {})

    def _ids(self) -> list[int]:
        return [(7 * number + 3) % min(self.vocab_size, 64) for number in range(_TRIED_TOKENS)]

    def _try(self, count: int, expected: Tensor) -> KVShape:
        """Find what the layers keep, and compare with the model as transformers computes it."""
        found = self._holder.shapes = {}
        text = self.config.get_text_config()
        heads = int(getattr(text, "num_key_value_heads", None) or text.num_attention_heads)
        width = int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
        shape = KVShape(layers=count, heads=heads, width=width)
        rows = Rows(
            ids=self._ids(),
            positions=self._positions(),
            spans=[Span(start=0, size=32, held=0, count=_TRIED_TOKENS)],
            slots=[NO_ADAPTER] * _TRIED_TOKENS,
            wanted=range(_TRIED_TOKENS),
        )
        vision, name = self.vision, type(self._model).__name__
        self.vision = None
        try:
            with torch.inference_mode():
                logits = self.logits(rows, KVPool(shape, 32, self.dtype, self.device))
        except (RuntimeError, IndexError) as error:
            raise ModelError(f"{name} can't be sampled from here: its layers differ in keys and values") from error
        finally:
            self.vision, self._holder.shapes = vision, None
        expected = expected.float()
        whole = expected.isfinite()  # weights that give no finite logits fail their requests, not their loading
        bound = (1e-4 if self.dtype == torch.float32 else 0.1) * float(
            expected[whole].abs().sum().div(max(1, int(whole.sum()))) * 10
        )
        same = not whole.any() or float((logits.float() - expected)[whole].abs().max()) <= bound
        if sorted(found) != list(range(count)) or not same:
            raise ModelError(f"{name} can't be sampled from here: its attention gives other logits than transformers'")
        return shape


def _settle_weights(model: PreTrainedModel) -> None:
    """What is left takes memory of its own, so that no file stays mapped for it; what was freed goes to the system."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    with contextlib.suppress(AttributeError, OSError):  # the C library has another allocator
        ctypes.CDLL(None).malloc_trim(0)
