// Many rows for each adapter: prefill and training. Tensor cores, tiles of 64 rows gathered through perm.
//
// Both kernels take either side of the adapters. Forward, rows shrink by A and expand by B; backward, gradients shrink
// by B and expand by A.
#pragma once

constexpr int TA_MMA_SPLIT = 1024;    // inputs summed up by one block of mma_shrink
constexpr int TA_MMA_COLUMNS = 64;    // of y that mma_expand works on at once
constexpr int TA_MMA_STEP = sizeof(ta_row) == 2 && sizeof(ta_weight) == 2 ? 64 : 32;  // inputs staged at once
constexpr int TA_EXPAND_BLOCKS = sizeof(ta_row) == 2 ? 3 : 2;  // of mma_expand, on one multiprocessor at least

template <int bound>
__device__ __forceinline__ void ta_mma_shrink(float* partials, const ta_row* x, ta_i64 x_row, int inputs, bool by_b,
                                              const ta_adapter& adapter, int4 tile, const int* perm, ta_i64 at,
                                              int stride) {
  constexpr int x_size = TA_MMA_ROWS * ta_pitch<ta_row>(TA_MMA_STEP);
  constexpr int w_size = ta_weights_size<TA_MMA_STEP, bound>();
  ta_row* staged_x = reinterpret_cast<ta_row*>(ta_shared());
  ta_weight* staged_w = reinterpret_cast<ta_weight*>(staged_x + 2 * x_size);
  const ta_side side = ta_pick_side(adapter, by_b);
  const bool wide = ta_is_wide(x, x_row), transposed = !side.by_rank();
  const int pitch = ta_pitch<ta_weight>(transposed ? bound : TA_MMA_STEP);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int begin = blockIdx.y * TA_MMA_SPLIT, end = min(inputs, begin + TA_MMA_SPLIT);
  const int steps = (end - begin + TA_MMA_STEP - 1) / TA_MMA_STEP;
  float sums[bound / 8][4] = {};

  const auto stage = [&](int step) {
    const int k = begin + step * TA_MMA_STEP;
    ta_stage_tile<TA_MMA_ROWS, TA_MMA_STEP>(
        staged_x + step % 2 * x_size,
        [&](int m) { return m < tile.z ? x + perm[tile.y + m] * x_row + k : nullptr; }, end - k, wide);
    ta_stage_weights<TA_MMA_STEP, bound>(staged_w + step % 2 * w_size, side, k, end, 0, adapter.rank);
  };
  stage(0);
  ta_copy_commit();
  for (int step = 0; step < steps; step++) {
    if (step + 1 < steps) stage(step + 1);
    ta_copy_commit();
    ta_copy_wait<1>();
    __syncthreads();
    const ta_row* rows = staged_x + step % 2 * x_size + warp * 16 * ta_pitch<ta_row>(TA_MMA_STEP);
    const ta_weight* weights = staged_w + step % 2 * w_size;
#pragma unroll
    for (int k = 0; k < TA_MMA_STEP; k += 16) {
      unsigned left[TA_ROW_PLANES][4];
      ta_left(left, rows + k, ta_pitch<ta_row>(TA_MMA_STEP), false);
#pragma unroll
      for (int n = 0; n < bound / 8; n++) {
        if (n * 8 >= adapter.rank) break;
        unsigned right[TA_WEIGHT_PLANES][2];
        ta_right(right, transposed ? weights + k * pitch + n * 8 : weights + n * 8 * pitch + k, pitch, transposed);
        ta_multiply(sums[n], left, right);
      }
    }
    __syncthreads();  // the next step overwrites what this one read
  }
#pragma unroll
  for (int n = 0; n < bound / 8; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int m = warp * 16 + lane / 4 + i / 2 * 8, j = n * 8 + lane % 4 * 2 + i % 2;
      if (m < tile.z && j < adapter.rank) partials[(at + m) * stride + j] = sums[n][i];
    }
  }
}

template <int bound>
__device__ __forceinline__ void ta_mma_expand(const float* partials, int splits, const ta_output& output, bool by_b,
                                              bool adds, float scale, int columns, const ta_adapter& adapter, int4 tile,
                                              const int* perm, ta_i64 split_stride, int stride) {
  constexpr int s_pitch = ta_pitch<float>(bound), out_pitch = ta_pitch<float>(TA_MMA_COLUMNS);
  constexpr int group = ta_wide<ta_row>::count, groups = TA_MMA_COLUMNS / group, each = 16 * groups / 32;
  float* s = reinterpret_cast<float*>(ta_shared());
  ta_weight* weights = reinterpret_cast<ta_weight*>(s + TA_MMA_ROWS * s_pitch);
  float* outs = reinterpret_cast<float*>(weights + ta_weights_size<TA_MMA_COLUMNS, bound>());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int at = threadIdx.x; at < TA_MMA_ROWS * bound; at += TA_MMA_THREADS) {
    const int m = at / bound, j = at % bound;
    const bool used = m < tile.z && j < adapter.rank;
    const float* first = partials + (static_cast<ta_i64>(tile.y) + m) * stride + j;
    s[m * s_pitch + j] = used ? scale * ta_sum_splits(first, splits, split_stride) : 0.f;
  }
  const ta_side side = ta_pick_side(adapter, by_b);
  const bool wide = ta_is_wide(output.y, output.y_row), transposed = side.by_rank();
  const int pitch = ta_pitch<ta_weight>(transposed ? TA_MMA_COLUMNS : bound);
  const int last = min(output.width, static_cast<int>(blockIdx.y + 1) * columns);
  float* out = outs + warp * 16 * out_pitch;
  for (int begin = blockIdx.y * columns; begin < last; begin += TA_MMA_COLUMNS) {
    __syncthreads();  // s is there; nobody still reads the weights before
    ta_stage_weights<TA_MMA_COLUMNS, bound>(weights, side, begin, last, 0, adapter.rank);
    ta_copy_commit();
    uint4 before[each];
#pragma unroll
    for (int q = 0; q < each; q++) {
      const int m = warp * 16 + (lane + 32 * q) / groups, n = begin + (lane + 32 * q) % groups * group;
      before[q] = make_uint4(0, 0, 0, 0);
      if (adds && wide && m < tile.z && n + group <= last) {
        before[q] = ta_load16(output.y + perm[tile.y + m] * output.y_row + n);
      }
    }
    ta_copy_wait<0>();
    __syncthreads();
    float sums[TA_MMA_COLUMNS / 8][4] = {};
#pragma unroll 1
    for (int k = 0; k < min(bound, adapter.rank); k += 16) {
      unsigned left[TA_SUM_PLANES][4];
      ta_left(left, s + warp * 16 * s_pitch + k, s_pitch, false);
#pragma unroll
      for (int n = 0; n < TA_MMA_COLUMNS / 8; n++) {
        unsigned right[TA_WEIGHT_PLANES][2];
        ta_right(right, transposed ? weights + k * pitch + n * 8 : weights + n * 8 * pitch + k, pitch, transposed);
        ta_multiply(sums[n], left, right);
      }
    }
    // through shared memory, so that y is read and written in whole groups of 16 bytes
#pragma unroll
    for (int n = 0; n < TA_MMA_COLUMNS / 8; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        out[(lane / 4 + i / 2 * 8) * out_pitch + n * 8 + lane % 4 * 2 + i % 2] = sums[n][i];
      }
    }
    __syncwarp();
#pragma unroll
    for (int q = 0; q < each; q++) {
      const int row = (lane + 32 * q) / groups, column = (lane + 32 * q) % groups * group;
      const int m = warp * 16 + row, n = begin + column;
      if (m >= tile.z || n >= last) continue;
      ta_row* y = output.y + perm[tile.y + m] * output.y_row + n;
      const float* added = out + row * out_pitch + column;
      if (wide && n + group <= last) {
        float values[group];
        ta_unpack(values, before[q], ta_row());
#pragma unroll
        for (int i = 0; i < group; i++) values[i] += added[i];
        ta_store16(y, ta_pack(values, ta_row()));
      } else {
        for (int i = 0; i < group && n + i < last; i++) ta_store(y + i, (adds ? ta_load(y + i) : 0.f) + added[i]);
      }
    }
    __syncwarp();
  }
}

// grid (tiles, splits, slices). Products with A, or with B where by_b, of rows of x.
#define TA_MMA_SHRINK(bound)                                                                                       \
  extern "C" __global__ void __launch_bounds__(TA_MMA_THREADS, 4)                                                  \
      mma_shrink_##bound(float* partials, const ta_row* x, ta_i64 x_row, int inputs, const ta_adapter* table,      \
                         int slots, const int4* tiles, const int* perm, int positions, int stride, int by_b) {     \
    const int4 tile = tiles[blockIdx.x];                                                                           \
    if (tile.z <= 0) return;                                                                                       \
    const ta_adapter adapter = table[blockIdx.z * slots + tile.x];                                                 \
    if (adapter.rank <= 0) return;                                                                                 \
    const ta_i64 at = (static_cast<ta_i64>(blockIdx.z) * gridDim.y + blockIdx.y) * positions + tile.y;             \
    ta_mma_shrink<bound>(partials, x, x_row, inputs, by_b != 0, adapter, tile, perm, at, stride);                  \
  }

// grid (tiles, blocks of `columns` columns, slices). `adds` says that y is added to, else it is overwritten; `scaled`
// that the partial sums bear the adapter's scale already.
#define TA_MMA_EXPAND(bound)                                                                                       \
  extern "C" __global__ void __launch_bounds__(TA_MMA_THREADS, TA_EXPAND_BLOCKS)                                   \
      mma_expand_##bound(const float* partials, int splits, ta_row* y0, ta_i64 row0, int width0, ta_row* y1,       \
                         ta_i64 row1, int width1, ta_row* y2, ta_i64 row2, int width2, const ta_adapter* table,    \
                         int slots, const int4* tiles, const int* perm, int positions, int stride, int by_b,       \
                         int columns, int adds, int scaled) {                                                      \
    const int4 tile = tiles[blockIdx.x];                                                                           \
    if (tile.z <= 0) return;                                                                                       \
    const ta_adapter adapter = table[blockIdx.z * slots + tile.x];                                                 \
    const ta_output output = ta_pick(blockIdx.z, y0, row0, width0, y1, row1, width1, y2, row2, width2);            \
    if (adapter.rank <= 0 || static_cast<int>(blockIdx.y) * columns >= output.width) return;                       \
    const ta_i64 split_stride = static_cast<ta_i64>(positions) * stride;                                           \
    ta_mma_expand<bound>(partials + blockIdx.z * splits * split_stride, splits, output, by_b != 0, adds != 0,      \
                         scaled != 0 ? 1.f : adapter.scale, columns, adapter, tile, perm, split_stride, stride);   \
  }

TA_MMA_SHRINK(16)
TA_MMA_SHRINK(32)
TA_MMA_SHRINK(64)
TA_MMA_SHRINK(128)
TA_MMA_EXPAND(16)
TA_MMA_EXPAND(32)
TA_MMA_EXPAND(64)
TA_MMA_EXPAND(128)
