"""Linear layers as the sampler computes them: siblings as one product, weights packed, adapters added per row.

How weights are held and multiplied is `weights`' business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from tinker_actors.kernels import RowPlan
from tinker_actors.kernels.backend import backend_for
from tinker_actors.sampling.adapter_stacks import LayerStacks, Place, TilePlan, in_order, plan_tiles, rank_class
from tinker_actors.sampling.adapter_tables import LayerTables, plan_rows
from tinker_actors.sampling.weights import weights_of

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers of one parent that usually read the same input."""


class Plans:
    """How adapters are added to all layers of a model, and the plans of the forward pass under way.

    Args:
        device: Where the layers are. Where kernels run, they add the adapters; else products of tiles do.

    Attributes:
        tiles: For the rows of the step.
        head: For the rows whose logits are wanted.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._backend = device, backend_for(device)
        self.tiles: Sequence[TilePlan | RowPlan] = []
        self.head: Sequence[TilePlan | RowPlan] = []

    def layer(self, inputs: int, outputs: Sequence[int]) -> LayerStacks | LayerTables:
        """Room for the adapters of layers that read the same input."""
        if self._backend is not None:
            return LayerTables(self._backend, self._device, outputs)
        return LayerStacks(inputs, outputs, self._device)

    def of(self, slots: Sequence[int], places: dict[int, Place]) -> Sequence[TilePlan | RowPlan]:
        """The plans for rows of these adapters."""
        return plan_tiles(slots, places, self._device) if self._backend is None else plan_rows(slots, places)

    def arrange(self) -> Tensor | None:
        """Let layers have the step's rows in the order of their tiles, if that spares them anything; that order."""
        if self._backend is not None:
            return None
        self.tiles, order_t = in_order(cast("Sequence[TilePlan]", self.tiles))
        return order_t

    def rank_class(self, rank: int) -> int:
        """Adapters of one class lie together."""
        return rank_class(rank) if self._backend is None else 0


class Product:
    """Layers that may read the same input, computed together when they do.

    Args:
        layers: The layers, by ascending output.
        plans: Shared by the model's layers.
        head: Whether it is the output head, which sees the wanted rows alone.
        wide: Whether inputs are float32 whatever the weights are.
        orders: For each layer which of its outputs comes where; None for all as they are.
    """

    def __init__(
        self,
        layers: Sequence[nn.Linear],
        plans: Plans,
        *,
        head: bool = False,
        wide: bool = False,
        orders: Sequence[Tensor | None] = (),
    ) -> None:
        self.outputs = [layer.out_features for layer in layers]
        self.inputs = layers[0].in_features
        self._plans, self.is_head = plans, head
        self.stacks = plans.layer(self.inputs, self.outputs)
        self._orders = tuple(orders) or (None,) * len(layers)
        weight = layers[0].weight if len(layers) == 1 else torch.cat([layer.weight for layer in layers])
        with torch.no_grad():
            weight, bias = weight.detach(), _joined_bias(layers)
            if any(order is not None for order in self._orders):
                order_o = self._joined_order(weight.device)
                weight, bias = weight.index_select(0, order_o), None if bias is None else bias.index_select(0, order_o)
            self._weights = weights_of(weight, bias, wide=wide)
        self._input: Tensor | None = None
        self._pieces: tuple[Tensor, ...] = ()
        self._left = 0

    @property
    def least_rows(self) -> int:
        """Rows from which on a row gets the same bits for any number of them."""
        return self._weights.least_rows

    def put(self, place: Place, parts: Sequence[tuple[Tensor, Tensor, float] | None]) -> None:
        """Install an adapter: A [rank, in], B [out, rank] and the scale for each layer that it adapts."""
        ordered: list[tuple[Tensor, Tensor, float] | None] = []
        for part, order_o in zip(parts, self._orders, strict=True):
            if part is not None and order_o is not None:
                a_ri, b_or, scale = part
                part = (a_ri, b_or.index_select(0, order_o.to(b_or.device)), scale)
            ordered.append(part)
        self.stacks.put(place, ordered)

    def piece(self, number: int, x: Tensor) -> Tensor:
        """What one of the layers makes of an input."""
        if self._input is not x:
            self._input, self._pieces = x, self._compute(x)
            self._left = len(self.outputs)
        piece = self._pieces[number]
        self._left -= 1
        if not self._left:
            self._input, self._pieces = None, ()
        return piece

    def compute(self, x_ti: Tensor) -> Tensor:
        """The outputs of all layers, adapters included, side by side, shape (T, O), in memory of their own."""
        y_to = self._weights(x_ti)
        for plan in self._plans.head if self.is_head else self._plans.tiles:
            self.stacks.add(y_to, x_ti, plan)  # pyright: ignore[reportArgumentType] - its own kind of plan
        return y_to

    def _joined_order(self, device: torch.device) -> Tensor:
        found: list[Tensor] = []
        first = 0
        for count, order_o in zip(self.outputs, self._orders, strict=True):
            found.append((torch.arange(count) if order_o is None else order_o) + first)
            first += count
        return torch.cat(found).to(device)

    def _compute(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.compute(x.reshape(-1, self.inputs)).view(*x.shape[:-1], -1)
        return (y,) if len(self.outputs) == 1 else y.split(self.outputs, dim=-1)


class Piece(nn.Module):
    """One of the layers of a product, in the place of the layer that it was.

    Args:
        product: What computes it.
        number: Which of its layers.
        base: The layer that was replaced.

    Attributes:
        product: What computes it.
    """

    def __init__(self, product: Product, number: int, base: nn.Linear) -> None:
        super().__init__()
        self.product, self._number = product, number
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight = base.weight  # some models look at its dtype

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]; the leading dimensions, flattened, are the rows of the step."""
        return self.product.piece(self._number, x)


def _joined_bias(layers: Sequence[nn.Linear]) -> Tensor | None:
    if all(layer.bias is None for layer in layers):
        return None
    filled = [layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers]
    return torch.cat([bias.detach() for bias in filled])


def replace_linears(
    model: nn.Module,
    skip: Sequence[str],
    plans: Plans,
    *,
    wide: bool = False,
    owned: bool = False,
    orders: Mapping[str, Tensor] | None = None,
) -> dict[str, tuple[Product, int]]:
    """Replace a model's linear layers; which product computes each, by path.

    Args:
        model: Changed in place.
        skip: Paths below which layers stay as they are.
        plans: Shared by all layers.
        wide: Whether inputs are float32 whatever the weights are.
        owned: Whether the layers' weights are given up as soon as their product has them in the form that it needs.
        orders: By path, which output of a layer comes where; those that aren't named stay as they are.
    """
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # pyright: ignore
    made: dict[str, tuple[Product, int]] = {}
    for path, parent in list(model.named_modules()):
        if any(path == prefix or path.startswith(f"{prefix}.") for prefix in skip):
            continue
        children = {name: child for name, child in parent.named_children() if isinstance(child, nn.Linear)}
        for names in _groups(children, head):
            layers = [children[name] for name in names]
            own = [(orders or {}).get(f"{path}.{name}".lstrip(".")) for name in names]
            product = Product(layers, plans, head=layers[0] is head, wide=wide, orders=own)
            for number, (name, layer) in enumerate(zip(names, layers, strict=True)):
                if owned:  # tied weights stay with whoever else refers to them
                    layer.weight = nn.Parameter(layer.weight.new_empty(0), requires_grad=False)
                setattr(parent, name, Piece(product, number, layer))
                made[f"{path}.{name}".lstrip(".")] = (product, number)
    return made


def _groups(children: dict[str, nn.Linear], head: object) -> list[tuple[str, ...]]:
    groups: list[tuple[str, ...]] = []
    left = dict(children)
    for names in SIBLINGS:
        found = [left[name] for name in names if name in left]
        if len(found) == len(names) and len({layer.in_features for layer in found}) == 1 and head not in found:
            groups.append(names)
            for name in names:
                del left[name]
    return [*groups, *((name,) for name in left)]


def widen(model: nn.Module) -> None:
    """Let everything but the products compute in float32, which their inputs then are.

    Embeddings stay as they are; what is looked up in them is converted. Other parameters are small.

    Args:
        model: Its linear layers are replaced; its parameters are replaced where they are of 16 bits, not written to.
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(lambda _module, _given, found: found.float())
            continue
        for name, parameter in module.named_parameters(recurse=False):
            kept = parameter.new_empty(0) if isinstance(module, Piece) else parameter.detach()
            module.register_parameter(name, nn.Parameter(kept.float(), requires_grad=False))
