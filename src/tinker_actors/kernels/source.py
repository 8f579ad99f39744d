"""The CUDA sources as one text per pair of types, and what each kernel in them takes.

The files in `cuda/` include nothing; `cuda_source` puts them one after the other behind the two types, and the result
compiles under NVRTC with no include path, or for a CPU where `TA_EMULATED` and the built-ins come before it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources

FILES = {
    "decode": ("prelude", "layout", "decode"),
    "prefill": ("prelude", "layout", "fragments", "prefill"),
    "backward": ("prelude", "layout", "fragments", "backward"),
}
"""For each group of kernels that is compiled together, its sources in `cuda/`, in the order in which they build on each
other."""

SLICES = 3
"""Most projections that share a launch."""
DECODE_ROWS = 8
"""Rows of a decode tile, at most (TA_DECODE_ROWS)."""
DECODE_SPLIT = 512
"""Inputs that a decode kernel sums up in one piece (TA_DECODE_SPLIT)."""
CLUSTER = 8
"""Blocks that share a tile in `decode_fused` (TA_CLUSTER)."""
MMA_ROWS = 64
"""Rows of a tile for the tensor cores, at most (TA_MMA_ROWS)."""
MMA_SPLIT = 1024
"""Inputs that `mma_shrink` sums up in one piece (TA_MMA_SPLIT)."""
MMA_COLUMNS = 64
"""Columns that `mma_expand` works on at once (TA_MMA_COLUMNS)."""
BACKWARD_WIDTH = 128
"""Columns of a block of `mma_both` and `mma_gradient` (TA_BACKWARD_WIDTH)."""
CHUNK_ROWS = 512
"""Rows over which a gradient is summed by one block, at most; a multiple of MMA_ROWS."""
RANK_BOUNDS = (16, 32, 64, 128)
"""Ranks up to which the tensor-core kernels exist; `mma_both` and `mma_gradient` only up to 64."""
BACKWARD_RANKS = 64
"""Ranks that one block of the backward kernels works on, at most."""

_OUTPUTS = "Pqi" * SLICES
_WIDTHS = "i" * SLICES
_ROWS = "Pqi"
_TABLE = "Pi"
_PLAN = "PP"
_PLACES = "ii"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel's name and what it is launched with.

    Attributes:
        name: The `extern "C"` function.
        group: The key in `FILES` of the sources that it is compiled with.
        parameters: A letter per argument, as in `struct`: P pointer, q int64, i int32.
        threads: Threads of a block.
        cluster: Blocks of a cluster along the grid's first axis; 1 where there are no clusters.
    """

    name: str
    group: str
    parameters: str
    threads: int = 128
    cluster: int = 1


def _kernels() -> list[Kernel]:
    shrink, expand = "P" + _ROWS + _TABLE + _PLAN + _PLACES, "Pi" + _OUTPUTS + _TABLE + _PLAN + _PLACES
    backward = "PPP" + _OUTPUTS + _TABLE + _PLAN + _PLACES + "ii"
    fused = _ROWS + _OUTPUTS + _TABLE + _PLAN + "i"
    kernels = [
        Kernel(name="decode_shrink", group="decode", parameters=shrink),
        Kernel(name="decode_expand", group="decode", parameters=expand),
        Kernel(name="decode_fused", group="decode", parameters=fused, cluster=CLUSTER),
        Kernel(name="sum_narrow", group="backward", parameters="PPii" + _WIDTHS + _TABLE + "P" + _PLACES),
        Kernel(name="sum_gradients", group="backward", parameters="Piii" + _WIDTHS + _TABLE + "Pi"),
    ]
    for bound in RANK_BOUNDS:
        kernels.append(Kernel(name=f"mma_shrink_{bound}", group="prefill", parameters=shrink + "i"))
        kernels.append(Kernel(name=f"mma_expand_{bound}", group="prefill", parameters=expand + "iiii"))
        if bound <= BACKWARD_RANKS:
            kernels.append(Kernel(name=f"mma_both_{bound}", group="backward", parameters=backward))
            kernels.append(Kernel(name=f"mma_gradient_{bound}", group="backward", parameters=backward))
    return kernels


KERNELS = {kernel.name: kernel for kernel in _kernels()}
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


def cuda_source(types: Types, group: str) -> str:
    """The whole source of a group of kernels for a pair of types."""
    types_first = f"#define TA_ROW {types.rows}\n#define TA_WEIGHT {types.weights}\n"
    return types_first + "\n".join(_read(name) for name in FILES[group])


@functools.cache
def _read(name: str) -> str:
    folder = resources.files("tinker_actors.kernels") / "cuda"
    # the files stand together in one text, where the pragma has no meaning
    return (folder / f"{name}.cuh").read_text(encoding="utf-8").replace("#pragma once\n", "")
