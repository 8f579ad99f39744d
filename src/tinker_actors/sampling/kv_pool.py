"""Keys and values of every layer, by place. Which places belong to whom is not known here.

Shape suffixes: N layers, P places, T new rows, G key heads, D width of a head, B sequences, L keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_LINE = 64  # bytes of a cache line, at which torch begins its tensors too


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """What a model keeps for a token.

    Attributes:
        layers: How many layers do.
        heads: Key heads of each, as many as value heads.
        width: Width of a key, and of a value.
    """

    layers: int
    heads: int
    width: int

    def nbytes(self, dtype: torch.dtype) -> int:
        """Memory of one token in all layers."""
        return 2 * self.layers * self.heads * self.width * dtype.itemsize


class KVPool:
    """The memory itself. On a CPU untouched parts of it take none on systems that hand out pages when first written.

    Args:
        shape: What is kept for a token.
        places: Tokens that there is room for.
        dtype: Of keys and values.
        device: Where they are; that of the model.
    """

    def __init__(
        self, shape: KVShape, places: int, dtype: torch.dtype, device: torch.device | str | None = None
    ) -> None:
        self.shape, self.places, self.dtype = shape, places, dtype
        # a place's keys lie before its values, so that both are written at once
        size = (shape.layers, places, 2 * shape.heads, shape.width)
        is_host = torch.device(device or "cpu").type == "cpu"
        self._all = _untouched(size, dtype) if is_host else torch.zeros(size, dtype=dtype, device=device)
        self._layers = self._all.unbind()

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self._all.device

    @property
    def nbytes(self) -> int:
        """Memory of all places."""
        return self._all.nbytes

    def write(self, layer: int, places_t: Tensor, kept_thd: Tensor) -> None:
        """Set the keys and values of new tokens, the heads of keys before those of values: shape (T, 2G, D)."""
        self._layers[layer].index_copy_(0, places_t, kept_thd)

    def read(self, start: int, count: int, stride: int, keys: int) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values of sequences at equal distances, for each layer a view of shape (B, G, L, D).

        Args:
            start: First place of the first sequence.
            count: Sequences, B.
            stride: Places from one to the next.
            keys: Places to read of each, L.
        """
        heads, width = self.shape.heads, self.shape.width
        place = 2 * heads * width
        size = (self.shape.layers, count, heads, keys, width)
        strides = (self.places * place, stride * place, width, place, 1)
        first, second = (
            self._all.as_strided(size, strides, start * place + offset).unbind() for offset in (0, heads * width)
        )
        return list(first), list(second)

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy tokens from one place on to another; the two don't overlap."""
        self._all.narrow(1, target, count).copy_(self._all.narrow(1, source, count))

    def wipe(self, start: int, count: int) -> None:
        """Make what is there finite again: masked attention multiplies it by zero."""
        self._all.narrow(1, start, count).zero_()


def _untouched(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros on the CPU that nobody wrote, which `torch.zeros` does."""
    count = math.prod(size) * dtype.itemsize
    memory = np.zeros(count + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return torch.from_numpy(memory[start : start + count]).view(dtype).view(size)
