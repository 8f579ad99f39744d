// Few rows for each adapter: what a sampler's decode steps ask for.
//
// No tensor cores: a warp computes one rank's products for up to eight rows, and every weight is read once. The inputs
// are cut into pieces of TA_DECODE_SPLIT whatever the batch is, and both ways in (two kernels, or one kernel of
// clusters) sum the pieces in the same order, so that they agree to the last bit.
#pragma once

constexpr int TA_DECODE_ROWS = 8;       // of a tile, at most
constexpr int TA_DECODE_SPLIT = 512;    // inputs summed up by one block
constexpr int TA_DECODE_THREADS = 128;  // of a block
constexpr int TA_DECODE_RANKS = 4;      // that a warp works on at once
constexpr int TA_CLUSTER = 8;           // blocks of decode_fused that share a tile

// Where input k of a piece is staged, in groups of four floats: so that the 32 lanes of a warp, each of which reads
// 16 bytes of weights, find their inputs side by side.
__device__ __forceinline__ int ta_staged_group(int k) {
  constexpr int halves = ta_wide<ta_weight>::count / 4;
  const int group = k / 4;
  return (group / (32 * halves) * halves + group % halves) * 32 + group / halves % 32;
}

// A piece of a tile's rows into shared memory, as floats [row][TA_DECODE_SPLIT], zero beyond `end`.
__device__ __forceinline__ void ta_stage_rows(float4* staged, const ta_row* x, ta_i64 x_row, const int* perm, int4 tile,
                                              int begin, int end) {
  constexpr int wide = ta_wide<ta_row>::count, groups = TA_DECODE_SPLIT / wide;
  const bool is_wide = ta_is_wide(x, x_row);
  for (int at = threadIdx.x; at < tile.z * groups; at += TA_DECODE_THREADS) {
    const int m = at / groups, k = at % groups * wide;
    float values[wide];
    ta_read_group(values, x + perm[tile.y + m] * x_row + begin + k, end - begin - k, is_wide);
#pragma unroll
    for (int i = 0; i < wide; i += 4) {
      staged[m * (TA_DECODE_SPLIT / 4) + ta_staged_group(k + i)] =
          make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
    }
  }
}

// out[m * out_row + j] = sum over a piece's inputs of x[m][i] A[j][i], for all rows of the tile and ranks.
template <bool whole>
__device__ __forceinline__ void ta_shrink_piece(float* out, int out_row, const float4* staged, int rows,
                                                const ta_adapter& adapter, int begin, int end) {
  constexpr int wide = ta_wide<ta_weight>::count, halves = wide / 4, steps = TA_DECODE_SPLIT / (32 * wide);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const ta_weight* a = reinterpret_cast<const ta_weight*>(adapter.a) + begin;
  for (int first = warp; first < adapter.rank; first += TA_DECODE_RANKS * (TA_DECODE_THREADS / 32)) {
    float sums[TA_DECODE_RANKS][TA_DECODE_ROWS];
#pragma unroll
    for (int q = 0; q < TA_DECODE_RANKS; q++)
#pragma unroll
      for (int m = 0; m < TA_DECODE_ROWS; m++) sums[q][m] = 0.f;
#pragma unroll
    for (int step = 0; step < steps; step++) {
      const int k = (step * 32 + lane) * wide;
      float weights[TA_DECODE_RANKS][wide];
#pragma unroll
      for (int q = 0; q < TA_DECODE_RANKS; q++) {
        const int j = min(first + q * (TA_DECODE_THREADS / 32), adapter.rank - 1);
        ta_read_group(weights[q], a + j * adapter.a_rank + k, whole ? wide : end - begin - k, whole);
      }
#pragma unroll
      for (int m = 0; m < TA_DECODE_ROWS; m++) {
        if (m >= rows) break;
#pragma unroll
        for (int half = 0; half < halves; half++) {
          const float4 x = staged[m * (TA_DECODE_SPLIT / 4) + (step * halves + half) * 32 + lane];
#pragma unroll
          for (int q = 0; q < TA_DECODE_RANKS; q++) {
            sums[q][m] += weights[q][half * 4] * x.x;
            sums[q][m] += weights[q][half * 4 + 1] * x.y;
            sums[q][m] += weights[q][half * 4 + 2] * x.z;
            sums[q][m] += weights[q][half * 4 + 3] * x.w;
          }
        }
      }
    }
#pragma unroll
    for (int q = 0; q < TA_DECODE_RANKS; q++) {
      const int j = first + q * (TA_DECODE_THREADS / 32);
#pragma unroll
      for (int m = 0; m < TA_DECODE_ROWS; m++) {
        if (m >= rows || j >= adapter.rank) break;
        float sum = sums[q][m];
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (lane == 0) out[m * out_row + j] = sum;
      }
    }
  }
}

__device__ __forceinline__ void ta_shrink_rows(float* out, int out_row, const float4* staged, int rows,
                                               const ta_adapter& adapter, int begin, int end) {
  const ta_weight* a = reinterpret_cast<const ta_weight*>(adapter.a) + begin;
  if (end - begin == TA_DECODE_SPLIT && ta_is_wide(a, adapter.a_rank)) {
    ta_shrink_piece<true>(out, out_row, staged, rows, adapter, begin, end);
  } else {
    ta_shrink_piece<false>(out, out_row, staged, rows, adapter, begin, end);
  }
}

// Column n of the tile's rows of y, one rounding at the end. s is [row][s_row], its ranks already scaled.
__device__ __forceinline__ void ta_expand_column(const ta_output& output, int n, const float* s, int s_row,
                                                 const int* perm, int4 tile, const ta_adapter& adapter) {
  constexpr int wide = ta_wide<ta_weight>::count;
  const ta_weight* b = reinterpret_cast<const ta_weight*>(adapter.b) + n * adapter.b_out;
  float sums[TA_DECODE_ROWS];
#pragma unroll
  for (int m = 0; m < TA_DECODE_ROWS; m++) sums[m] = 0.f;
  if (adapter.b_rank == 1 && adapter.rank % wide == 0 &&
      ta_is_wide(reinterpret_cast<const ta_weight*>(adapter.b), adapter.b_out)) {
    for (int j = 0; j < adapter.rank; j += wide) {
      float weights[wide];
      ta_unpack(weights, ta_read16(b + j), ta_weight());
#pragma unroll
      for (int m = 0; m < TA_DECODE_ROWS; m++) {
        if (m >= tile.z) break;
#pragma unroll
        for (int i = 0; i < wide; i++) sums[m] += weights[i] * s[m * s_row + j + i];
      }
    }
  } else {
    for (int j = 0; j < adapter.rank; j++) {
      const float weight = ta_read(b + j * adapter.b_rank);
#pragma unroll
      for (int m = 0; m < TA_DECODE_ROWS; m++) {
        if (m >= tile.z) break;
        sums[m] += weight * s[m * s_row + j];
      }
    }
  }
#pragma unroll
  for (int m = 0; m < TA_DECODE_ROWS; m++) {
    if (m >= tile.z) break;
    ta_row* y = output.y + perm[tile.y + m] * output.y_row + n;
    ta_store(y, ta_load(y) + sums[m]);
  }
}

// grid (tiles, splits, slices); shared: TA_DECODE_ROWS TA_DECODE_SPLIT floats.
extern "C" __global__ void __launch_bounds__(TA_DECODE_THREADS, 3)
    decode_shrink(float* partials, const ta_row* x, ta_i64 x_row, int inputs, const ta_adapter* table, int slots,
                  const int4* tiles, const int* perm, int positions, int stride) {
  const int4 tile = tiles[blockIdx.x];
  if (tile.z <= 0) return;
  const ta_adapter adapter = table[blockIdx.z * slots + tile.x];
  if (adapter.rank <= 0) return;
  float4* staged = reinterpret_cast<float4*>(ta_shared());
  const int begin = blockIdx.y * TA_DECODE_SPLIT, end = min(inputs, begin + TA_DECODE_SPLIT);
  ta_stage_rows(staged, x, x_row, perm, tile, begin, end);
  __syncthreads();
  const ta_i64 at = (static_cast<ta_i64>(blockIdx.z) * gridDim.y + blockIdx.y) * positions + tile.y;
  ta_shrink_rows(partials + at * stride, stride, staged, tile.z, adapter, begin, end);
}

// grid (tiles, columns / TA_DECODE_THREADS, slices); shared: TA_DECODE_ROWS stride floats.
extern "C" __global__ void __launch_bounds__(TA_DECODE_THREADS, 4)
    decode_expand(const float* partials, int splits, ta_row* y0, ta_i64 row0, int width0, ta_row* y1, ta_i64 row1,
                  int width1, ta_row* y2, ta_i64 row2, int width2, const ta_adapter* table, int slots,
                  const int4* tiles, const int* perm, int positions, int stride) {
  const int4 tile = tiles[blockIdx.x];
  if (tile.z <= 0) return;
  const ta_adapter adapter = table[blockIdx.z * slots + tile.x];
  const ta_output output = ta_pick(blockIdx.z, y0, row0, width0, y1, row1, width1, y2, row2, width2);
  if (adapter.rank <= 0 || blockIdx.y * TA_DECODE_THREADS >= output.width) return;
  float* s = reinterpret_cast<float*>(ta_shared());
  const ta_i64 split_stride = static_cast<ta_i64>(positions) * stride;
  const float* first = partials + blockIdx.z * splits * split_stride + static_cast<ta_i64>(tile.y) * stride;
  for (int at = threadIdx.x; at < tile.z * adapter.rank; at += TA_DECODE_THREADS) {
    const int m = at / adapter.rank, j = at % adapter.rank;
    s[m * stride + j] = adapter.scale * ta_sum_splits(first + m * stride + j, splits, split_stride);
  }
  __syncthreads();
  const int n = blockIdx.y * TA_DECODE_THREADS + threadIdx.x;
  if (n < output.width) ta_expand_column(output, n, s, stride, perm, tile, adapter);
}

#if defined(TA_EMULATED) || !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// grid (TA_CLUSTER tiles, slices); clusters of TA_CLUSTER blocks. Block c of a cluster shrinks pieces c, c + 8, ... of
// the inputs and expands a share of the columns; the sums between pass through distributed shared memory, nothing
// through global memory.
// shared: TA_DECODE_ROWS (TA_DECODE_SPLIT + (pieces of a block + 1) stride) floats.
extern "C" __global__ void __cluster_dims__(TA_CLUSTER, 1, 1) __launch_bounds__(TA_DECODE_THREADS, 3)
    decode_fused(const ta_row* x, ta_i64 x_row, int inputs, ta_row* y0, ta_i64 row0, int width0, ta_row* y1,
                 ta_i64 row1, int width1, ta_row* y2, ta_i64 row2, int width2, const ta_adapter* table, int slots,
                 const int4* tiles, const int* perm, int stride) {
  const int4 tile = tiles[blockIdx.x / TA_CLUSTER];
  if (tile.z <= 0) return;  // and so does the whole cluster, here and below
  const ta_adapter adapter = table[blockIdx.y * slots + tile.x];
  if (adapter.rank <= 0) return;
  const int mine = ta_cluster_rank(), pieces = (inputs + TA_DECODE_SPLIT - 1) / TA_DECODE_SPLIT;
  float4* staged = reinterpret_cast<float4*>(ta_shared());
  float* s = reinterpret_cast<float*>(ta_shared()) + TA_DECODE_ROWS * TA_DECODE_SPLIT;
  float* sums = s + TA_DECODE_ROWS * stride;
  for (int piece = mine; piece < pieces; piece += TA_CLUSTER) {
    const int begin = piece * TA_DECODE_SPLIT, end = min(inputs, begin + TA_DECODE_SPLIT);
    __syncthreads();  // nobody still reads what was staged before
    ta_stage_rows(staged, x, x_row, perm, tile, begin, end);
    __syncthreads();
    float* out = sums + piece / TA_CLUSTER * TA_DECODE_ROWS * stride;
    ta_shrink_rows(out, stride, staged, tile.z, adapter, begin, end);
  }
  ta_cluster_sync();
  for (int at = threadIdx.x; at < tile.z * adapter.rank; at += TA_DECODE_THREADS) {
    const int m = at / adapter.rank, j = at % adapter.rank;
    float sum = 0.f;
    for (int piece = 0; piece < pieces; piece++) {
      const float* peer = sums + (piece / TA_CLUSTER * TA_DECODE_ROWS + m) * stride + j;
      sum += ta_peer_read(peer, piece % TA_CLUSTER);
    }
    s[m * stride + j] = adapter.scale * sum;
  }
  ta_cluster_sync();  // also: no block may leave while another reads its shared memory
  const ta_output output = ta_pick(blockIdx.y, y0, row0, width0, y1, row1, width1, y2, row2, width2);
  const int share = (output.width + TA_CLUSTER - 1) / TA_CLUSTER, last = min(output.width, (mine + 1) * share);
  for (int n = mine * share + threadIdx.x; n < last; n += TA_DECODE_THREADS) {
    ta_expand_column(output, n, s, stride, perm, tile, adapter);
  }
}
#endif
