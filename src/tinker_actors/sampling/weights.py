"""Ways to hold a linear layer's weights for the CPU, each with the product that reads them.

All give a row the same bits for any number of rows from `least_rows` on.

Processors with 16-bit dot products but no tile unit multiply bfloat16 at half the rate of float32, so there 16-bit
weights are multiplied in float32: `wide_products` tells.

Shape suffixes: T rows, I inputs, O outputs.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

_WORTH_PACKING = 100_000
_MOST_HALF_OUTPUTS = 16_384  # with more of them a block of the 16-bit product leaves the cache before it is used again
_LARGEST_HALF = 65_504.0


class Weights(Protocol):
    """A layer's weights and bias.

    Attributes:
        least_rows: Rows from which on a row gets the same bits for any number of them.
    """

    least_rows: int

    def __call__(self, x_ti: Tensor) -> Tensor:
        """The product, shape (T, O), in memory of its own."""
        ...


class Plain:
    """As they are; for small layers, where packing costs more than it brings."""

    least_rows = 16

    def __init__(self, weight_oi: Tensor, bias_o: Tensor | None) -> None:
        self._weight, self._bias = weight_oi, bias_o

    def __call__(self, x_ti: Tensor) -> Tensor:
        """The product."""
        return F.linear(x_ti, self._weight, self._bias)


class Packed:
    """Reordered by oneDNN, of the input's dtype."""

    least_rows = 2

    def __init__(self, weight_oi: Tensor, bias_o: Tensor | None) -> None:
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_oi.contiguous(), 32)
        self._bias = bias_o

    def __call__(self, x_ti: Tensor) -> Tensor:
        """The product."""
        return torch.ops.mkldnn._linear_pointwise(x_ti, self._packed, self._bias, "none", [], "")


class Half:
    """Weights of 16 bits, input and sums of float32 (FBGEMM).

    They are kept in float16, which holds every bfloat16 between 8e-6 and 65,504 as it is; smaller ones are off by 3e-8
    at most.
    """

    least_rows = 1

    def __init__(self, weight_oi: Tensor, bias_o: Tensor | None) -> None:
        bias = None if bias_o is None else bias_o.float()
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight_oi.float().contiguous(), bias)

    def __call__(self, x_ti: Tensor) -> Tensor:
        """The product."""
        rows = x_ti.shape[0]
        if missing := _missing_rows(rows):
            x_ti = F.pad(x_ti, (0, 0, 0, missing))
        return torch.ops.quantized.linear_dynamic_fp16(x_ti, self._packed)[:rows]

    @staticmethod
    def holds(weight_oi: Tensor) -> bool:
        """Whether this build can, and should, keep such weights."""
        return (
            weight_oi.dtype.itemsize == 2
            and weight_oi.shape[0] <= _MOST_HALF_OUTPUTS
            and torch.backends.quantized.engine in ("x86", "fbgemm")
            and float(weight_oi.abs().max()) <= _LARGEST_HALF
        )


def _missing_rows(rows: int) -> int:
    """How many rows to add so that FBGEMM multiplies none in a tile of one or two, which it sums up otherwise.

    Without AVX-512 it cuts every 120 rows into tiles of at most six: evenly up to 30 but for 7 and 14, then by sixes.
    """
    if _has_wide_registers():
        return 0
    left = rows % 120
    if left in (1, 2):
        return 3 - left
    if left in (7, 14):
        return 1
    return 3 - left % 6 if left > 30 and left % 6 in (1, 2) else 0


@cache
def _has_wide_registers() -> bool:
    return bool(cast("dict[str, object]", torch.cpu.get_capabilities()).get("avx512_f"))


def wide_products(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether layers of this dtype are better multiplied in float32 where they are."""
    if device.type != "cpu":
        return False
    can = cast("dict[str, object]", torch.cpu.get_capabilities())
    return (
        dtype.itemsize == 2
        and can.get("architecture") == "x86_64"
        and bool(can.get("avx2"))
        and not can.get("amx_tile")
    )


def weights_of(weight_oi: Tensor, bias_o: Tensor | None, *, wide: bool) -> Weights:
    """The best way to hold a layer.

    Args:
        weight_oi: Its weights; kept only where they stay as they are.
        bias_o: Its bias, if any.
        wide: Whether inputs are float32 whatever the weights are.
    """
    large = weight_oi.numel() >= _WORTH_PACKING and weight_oi.device.type == "cpu"
    if wide and large and Half.holds(weight_oi):
        return Half(weight_oi, bias_o)
    if wide:
        weight_oi, bias_o = weight_oi.float(), None if bias_o is None else bias_o.float()
    if large and torch.backends.mkldnn.is_available():
        return Packed(weight_oi, bias_o)
    return Plain(weight_oi, bias_o)
