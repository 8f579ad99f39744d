"""Defects to seed in the kernels, one at a time: what a slip in writing or changing them would look like."""

from __future__ import annotations

from dataclasses import dataclass

from tinker_actors.kernels.source import FILES, Types, cuda_source


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect.

    Attributes:
        name: What is wrong.
        group: The kernels that have it.
        old: Text that occurs once in the group's sources.
        new: What stands there instead.
    """

    name: str
    group: str
    old: str
    new: str

    def source(self, types: Types, group: str) -> str:
        """What `cuda_source` gives, with the defect.

        Raises:
            LookupError: The sources have changed and the text is not there exactly once.
        """
        text = cuda_source(types, group)
        if group != self.group:
            return text
        if text.count(self.old) != 1:
            raise LookupError(f"{self.name}: {self.old!r} occurs {text.count(self.old)} times in {FILES[group]}")
        return text.replace(self.old, self.new)


_DECODE = {
    "shrinks before the rows are staged": (
        "  __syncthreads();\n  const ta_i64 at = (static_cast<ta_i64>(blockIdx.z)",
        "  const ta_i64 at = (static_cast<ta_i64>(blockIdx.z)",
    ),
    "fused: stages over what others still read": (
        "    __syncthreads();  // nobody still reads what was staged before\n",
        "",
    ),
    "fused: shrinks before the rows are staged": (
        "    ta_stage_rows(staged, x, x_row, perm, tile, begin, end);\n    __syncthreads();\n    float* out",
        "    ta_stage_rows(staged, x, x_row, perm, tile, begin, end);\n    float* out",
    ),
    "fused: reads its peers before they are done": (
        "  ta_cluster_sync();\n  for (int at = threadIdx.x; at < tile.z * adapter.rank",
        "  __syncthreads();\n  for (int at = threadIdx.x; at < tile.z * adapter.rank",
    ),
    "fused: leaves while its peers read": (
        "  ta_cluster_sync();  // also: no block",
        "  __syncthreads();  // also: no block",
    ),
    "fused: reads its own sums for its peers'": (
        "ta_peer_read(peer, piece % TA_CLUSTER)",
        "ta_peer_read(peer, mine)",
    ),
    "expands before the sums are there": (
        "  __syncthreads();\n  const int n = blockIdx.y * TA_DECODE_THREADS",
        "  const int n = blockIdx.y * TA_DECODE_THREADS",
    ),
    "a shuffle too few": ("offset = 16; offset > 0", "offset = 8; offset > 0"),
    "not all lanes shuffle": (
        "for (int offset = 16; offset > 0; offset /= 2) sum +=",
        "if (lane < rows * 4) for (int offset = 16; offset > 0; offset /= 2) sum +=",
    ),
    "two kernels: forgets the scale": ("= adapter.scale * ta_sum_splits(first + m", "= ta_sum_splits(first + m"),
    "fused: forgets the scale": ("= adapter.scale * sum;", "= sum;"),
    "writes one rank too many": ("if (m >= rows || j >= adapter.rank) break;", "if (m >= rows) break;"),
    "reads inputs beyond the row": ("end - begin - k, is_wide);", "wide, is_wide);"),
    "reads weights beyond the row": ("whole ? wide : end - begin - k, whole);", "wide, whole);"),
    "takes 16 bytes where they are not aligned": (
        "if (end - begin == TA_DECODE_SPLIT && ta_is_wide(a, adapter.a_rank))",
        "if (end - begin == TA_DECODE_SPLIT)",
    ),
    "32-bit offsets of outputs": (
        "ta_row* y = output.y + perm[tile.y + m] * output.y_row + n;",
        "ta_row* y = output.y + perm[tile.y + m] * static_cast<int>(output.y_row) + n;",
    ),
    "32-bit offsets of rows": (
        "x + perm[tile.y + m] * x_row + begin + k, end",
        "x + perm[tile.y + m] * static_cast<int>(x_row) + begin + k, end",
    ),
    "32-bit offsets of B": ("+ n * adapter.b_out;", "+ n * static_cast<int>(adapter.b_out);"),
    "ignores the permutation": ("x + perm[tile.y + m] * x_row + begin", "x + (tile.y + m) * x_row + begin"),
    "fused: takes another cluster's tile": (
        "const int4 tile = tiles[blockIdx.x / TA_CLUSTER];",
        "const int4 tile = tiles[blockIdx.x % TA_CLUSTER];",
    ),
    "overwrites instead of adding": ("ta_store(y, ta_load(y) + sums[m]);", "ta_store(y, sums[m]);"),
    "rounds twice": (
        "ta_store(y, ta_load(y) + sums[m]);",
        "ta_store(y, ta_load(y) + ta_bf16_to_float(ta_float_to_bf16(sums[m])));",
    ),
    "the last columns are left out": (
        "min(output.width, (mine + 1) * share)",
        "min(output.width, (mine + 1) * share) / 2 * 2",
    ),
}


_PREFILL = {
    "uses a tile before its copies have arrived": ("    ta_copy_wait<1>();\n", "    ta_copy_wait<2>();\n"),
    "uses a tile before others' copies have arrived": (
        "    ta_copy_wait<1>();\n    __syncthreads();\n",
        "    ta_copy_wait<1>();\n",
    ),
    "copies over a tile that others still use": (
        "    __syncthreads();  // the next step overwrites what this one read\n",
        "",
    ),
    "expands weights that others still use": (
        "    __syncthreads();  // s is there; nobody still reads the weights before\n",
        "",
    ),
    "expands before the weights have arrived": (
        "    ta_copy_wait<0>();\n    __syncthreads();\n    float sums[TA_MMA",
        "    __syncthreads();\n    float sums[TA_MMA",
    ),
    "reads a warp's sums before they are written": (
        "    __syncwarp();\n#pragma unroll\n    for (int q = 0; q < each; q++) {\n      const int row",
        "#pragma unroll\n    for (int q = 0; q < each; q++) {\n      const int row",
    ),
    "writes rows beyond the tile": (
        "if (m < tile.z && j < adapter.rank) partials[",
        "if (j < adapter.rank) partials[",
    ),
    "copies inputs beyond the row": ("limit - column));", "group));"),
    "reads ranks that the adapter lacks": (
        "rank + j < rank_limit ? p + j * side.per_rank : nullptr",
        "p + j * side.per_rank",
    ),
    "sums the padding of ranks": (
        "const bool used = m < tile.z && j < adapter.rank;",
        "const bool used = m < tile.z;",
    ),
    "swaps rows and terms of a fragment": (
        "tile + lane % 16 * pitch + lane / 16 * 8;",
        "tile + lane / 16 * 8 * pitch + lane % 16;",
    ),
    "transposes no fragment of weights": (
        "  ta_fill(out, row, transposed);\n}\ntemplate <int planes>\n__device__ __forceinline__ void ta_right",
        "  ta_fill(out, row, false);\n}\ntemplate <int planes>\n__device__ __forceinline__ void ta_right",
    ),
    "keeps one plane of the sums": (
        "constexpr int TA_SUM_PLANES = sizeof(ta_row) == 2 ? 2 : 3;",
        "constexpr int TA_SUM_PLANES = 1;",
    ),
    "32-bit offsets of gathered rows": (
        "x + perm[tile.y + m] * x_row + k : nullptr",
        "x + perm[tile.y + m] * static_cast<int>(x_row) + k : nullptr",
    ),
    "32-bit offsets of weights": (
        "side.p + begin * side.per_feature + rank",
        "side.p + begin * static_cast<int>(side.per_feature) + rank",
    ),
    "adds what lies in another row": (
        "added = out + row * out_pitch + column;",
        "added = out + (row ^ 1) * out_pitch + column;",
    ),
    "forgets what y held": ("(adds ? ta_load(y + i) : 0.f) + added[i]", "added[i]"),
}


_BACKWARD = {
    "stages over rows that others still use": ("    __syncthreads();  // nobody still reads the tile before\n", ""),
    "uses rows before they have arrived": (
        "    ta_copy_wait<0>();\n    __syncthreads();\n#pragma unroll\n    for (int k = 0; k < TA_MMA_ROWS",
        "    __syncthreads();\n#pragma unroll\n    for (int k = 0; k < TA_MMA_ROWS",
    ),
    "32-bit offsets of gathered rows": (
        "wide.y + perm[first + m] * wide.y_row + begin",
        "wide.y + perm[first + m] * static_cast<int>(wide.y_row) + begin",
    ),
    "sums rows beyond the chunk": ("min(TA_MMA_ROWS, chunk.z - done)", "TA_MMA_ROWS"),
    "forgets all but the last rows of a chunk": (
        "    const int first = chunk.y + done,",
        "    for (auto& half : gradient) for (auto& tile : half) for (float& value : tile) value = 0.f;\n"
        "    const int first = chunk.y + done,",
    ),
    "writes ranks beyond the adapter's": ("if (m < count && j < ranks) out[", "if (m < count) out["),
    "writes columns beyond the width": ("if (begin + column < wide.width && j < ranks)", "if (j < ranks)"),
    "leaves out a split of dS": ("(width + per_split - 1) / per_split", "max(1, width / per_split)"),
    "forgets the scale of dS": (
        "        adapter.scale * ta_sum_splits(first, (width",
        "        ta_sum_splits(first, (width",
    ),
    "puts the first chunk alone into a gradient": (
        "* stride + j, segment.z, chunk_stride)",
        "* stride + j, 1, chunk_stride)",
    ),
    "takes a gradient's chunks from another adapter": (
        "* chunks + segment.y) * chunk_stride",
        "* chunks) * chunk_stride",
    ),
    "swaps the strides of a gradient": (
        "+ j * side.per_rank + i * side.per_feature, sum)",
        "+ i * side.per_rank + j * side.per_feature, sum)",
    ),
    "reads the second ranks as the first": (
        "* sums.stride + rank : nullptr; }, ranks,",
        "* sums.stride : nullptr; }, ranks,",
    ),
}

MUTANTS = {
    f"{group}: {name}": Mutant(name, group, old, new)
    for group, defects in {"decode": _DECODE, "prefill": _PREFILL, "backward": _BACKWARD}.items()
    for name, (old, new) in defects.items()
}
"""Every defect, by group and name."""

CONTROLS = {
    f"{group}: nothing": Mutant("nothing", group, "#ifndef TA_EMULATED\n\n", "#ifndef TA_EMULATED\n\n\n")
    for group in FILES
}
"""Sources of each group with a change that is none."""
