"""The CUDA sources as one text per pair of types, and what each kernel in them takes.

The files in `cuda/` include nothing; `cuda_source` puts them one after the other behind the two types, and the result
compiles under NVRTC with no include path, or for a CPU where `TA_EMULATED` and the built-ins come before it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources

FILES = ("prelude", "layout", "decode")
"""Names of the sources in `cuda/`, in the order in which they build on each other."""

DECODE_ROWS = 8
"""Rows of a decode tile, at most (TA_DECODE_ROWS)."""
DECODE_SPLIT = 512
"""Inputs that a decode kernel sums up in one piece (TA_DECODE_SPLIT)."""
CLUSTER = 8
"""Blocks that share a tile in `decode_fused` (TA_CLUSTER)."""
SLICES = 3
"""Most projections that share a launch."""

_OUTPUTS = "Pqi" * SLICES
_ROWS = "Pqi"
_TABLE = "Pi"
_PLAN = "PP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel's name and what it is launched with.

    Attributes:
        name: The `extern "C"` function.
        parameters: A letter per argument, as in `struct`: P pointer, q int64, i int32, f float32.
        threads: Threads of a block.
        cluster: Blocks of a cluster along the grid's first axis; 1 where there are no clusters.
    """

    name: str
    parameters: str
    threads: int = 128
    cluster: int = 1


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel(name="decode_shrink", parameters="P" + _ROWS + _TABLE + _PLAN + "ii"),
        Kernel(name="decode_expand", parameters="Pi" + _OUTPUTS + _TABLE + _PLAN + "ii"),
        Kernel(name="decode_fused", parameters=_ROWS + _OUTPUTS + _TABLE + _PLAN + "i", cluster=CLUSTER),
    )
}
"""Every kernel, by name."""


@dataclass(frozen=True, slots=True)
class Types:
    """A pair of types that the sources are compiled for, by their names there.

    Attributes:
        rows: Of the token matrix and the projections' outputs: "float", "ta_bf16" or "ta_half".
        weights: Of the adapters: the same as `rows`, or "float".
    """

    rows: str
    weights: str

    @property
    def row_bytes(self) -> int:
        """Size of one entry of the token matrix."""
        return 4 if self.rows == "float" else 2

    @property
    def weight_bytes(self) -> int:
        """Size of one weight."""
        return 4 if self.weights == "float" else 2


PAIRS = (
    Types("float", "float"),
    Types("ta_bf16", "ta_bf16"),
    Types("ta_bf16", "float"),
    Types("ta_half", "ta_half"),
    Types("ta_half", "float"),
)
"""Every pair that the launcher asks for."""


def cuda_source(types: Types) -> str:
    """The whole source for a pair of types."""
    return f"#define TA_ROW {types.rows}\n#define TA_WEIGHT {types.weights}\n" + "\n".join(map(_read, FILES))


@functools.cache
def _read(name: str) -> str:
    folder = resources.files("tinker_actors.kernels") / "cuda"
    # the files stand together in one text, where the pragma has no meaning
    return (folder / f"{name}.cuh").read_text(encoding="utf-8").replace("#pragma once\n", "")
