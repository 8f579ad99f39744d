"""Keys and values of every layer, by place. Which places belong to whom is not known here.

Shape suffixes: P places, T new rows, G key heads, D width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What one layer keeps for a token.

    Attributes:
        heads: Key heads, as many as value heads.
        key_width: Width of a key.
        value_width: Width of a value.
    """

    heads: int
    key_width: int
    value_width: int


class KVPool:
    """The memory itself: untouched parts of it take no memory on systems that hand out pages when first written.

    Args:
        layers: By layer index.
        places: Tokens that there is room for.
        dtype: Of keys and values.
    """

    def __init__(self, layers: Sequence[LayerShape], places: int, dtype: torch.dtype) -> None:
        self.layers, self.places, self.dtype = tuple(layers), places, dtype
        self.keys = [torch.zeros(places, shape.heads, shape.key_width, dtype=dtype) for shape in layers]
        self.values = [torch.zeros(places, shape.heads, shape.value_width, dtype=dtype) for shape in layers]

    @property
    def nbytes(self) -> int:
        """Memory of all places."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    @staticmethod
    def bytes_per_token(layers: Sequence[LayerShape], dtype: torch.dtype) -> int:
        """Memory of one token in all layers."""
        return sum(shape.heads * (shape.key_width + shape.value_width) for shape in layers) * dtype.itemsize

    def write(self, layer: int, places_t: Tensor, keys_tgd: Tensor, values_tgd: Tensor) -> None:
        """Set the keys and values of new tokens."""
        self.keys[layer].index_copy_(0, places_t, keys_tgd)
        self.values[layer].index_copy_(0, places_t, values_tgd)

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy tokens from one place on to another; the two don't overlap."""
        for tensor in (*self.keys, *self.values):
            tensor.narrow(0, target, count).copy_(tensor.narrow(0, source, count))

    def wipe(self, start: int, count: int) -> None:
        """Make what is there finite again: masked attention multiplies it by zero."""
        for tensor in (*self.keys, *self.values):
            tensor.narrow(0, start, count).zero_()
