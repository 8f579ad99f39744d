// The backward pass: gradients of the adapters, and of what lies between the two products.
//
// With S = scale X A^T and Y += S B^T: dS = scale dY B and dB = dY^T S, from one read of dY; dA = dS^T X. (dX = dS A is
// mma_expand.) A gradient is summed over chunks, tiles of some hundred rows of one adapter, each by one block, and the
// chunks are put together in their order: it depends on the adapter's own rows alone.
#pragma once

constexpr int TA_BACKWARD_WIDTH = 128;  // columns of a block

struct ta_backward {
  float* gradients;     // [slice][chunk][column][stride]: dB, or dA by input
  float* narrow_sums;   // [slice][split][position][stride]: dS before it is summed and scaled, where asked for
  const float* narrow;  // [slice][position][stride]: S, or dS
  ta_i64 columns;       // of `gradients`
  int positions;
  int stride;
};

// One chunk's share of a gradient for TA_BACKWARD_WIDTH columns of `wide` and ranks [rank, rank + bound), and where
// `both` is set, the columns' share of dS.
template <int bound, bool both>
__device__ __forceinline__ void ta_mma_backward(const ta_backward& sums, const ta_output& wide, int slice,
                                                const ta_adapter& adapter, int4 chunk, const int* perm, int rank) {
  constexpr int wide_pitch = ta_pitch<ta_row>(TA_BACKWARD_WIDTH), narrow_pitch = ta_pitch<float>(bound);
  ta_row* rows = reinterpret_cast<ta_row*>(ta_shared());
  float* narrow = reinterpret_cast<float*>(rows + TA_MMA_ROWS * wide_pitch);
  ta_weight* weights = reinterpret_cast<ta_weight*>(narrow + TA_MMA_ROWS * narrow_pitch);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int begin = blockIdx.y * TA_BACKWARD_WIDTH, ranks = min(bound, adapter.rank - rank);
  const ta_side side = ta_pick_side(adapter, true);
  const bool transposed = side.by_rank();
  const int pitch = ta_pitch<ta_weight>(transposed ? TA_BACKWARD_WIDTH : bound);
  const bool is_wide = ta_is_wide(wide.y, wide.y_row);
  const ta_i64 narrow_at = static_cast<ta_i64>(slice) * sums.positions;
  if (both) ta_stage_weights<TA_BACKWARD_WIDTH, bound>(weights, side, begin, wide.width, rank, adapter.rank);

  float gradient[2][bound / 8][4] = {};
  for (int done = 0; done < chunk.z; done += TA_MMA_ROWS) {
    const int first = chunk.y + done, count = min(TA_MMA_ROWS, chunk.z - done);
    __syncthreads();  // nobody still reads the tile before
    ta_stage_tile<TA_MMA_ROWS, TA_BACKWARD_WIDTH>(
        rows,
        [&](int m) -> const ta_row* { return m < count ? wide.y + perm[first + m] * wide.y_row + begin : nullptr; },
        wide.width - begin, is_wide);
    ta_stage_tile<TA_MMA_ROWS, bound>(
        narrow,
        [&](int m) { return m < count ? sums.narrow + (narrow_at + first + m) * sums.stride + rank : nullptr; }, ranks,
        true);
    ta_copy_commit();
    ta_copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TA_MMA_ROWS; k += 16) {  // 32 columns for each warp, summed over rows
      unsigned left[2][TA_ROW_PLANES][4];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        ta_left(left[half], rows + k * wide_pitch + warp * 32 + half * 16, wide_pitch, true);
      }
#pragma unroll
      for (int n = 0; n < bound / 8; n++) {
        if (n * 8 >= ranks) break;
        unsigned right[TA_SUM_PLANES][2];
        ta_right(right, narrow + k * narrow_pitch + n * 8, narrow_pitch, true);
#pragma unroll
        for (int half = 0; half < 2; half++) ta_multiply(gradient[half][n], left[half], right);
      }
    }
    if (both) {  // 16 rows for each warp, summed over columns
      float products[bound / 8][4] = {};
#pragma unroll 2
      for (int k = 0; k < TA_BACKWARD_WIDTH; k += 16) {
        unsigned left[TA_ROW_PLANES][4];
        ta_left(left, rows + warp * 16 * wide_pitch + k, wide_pitch, false);
#pragma unroll
        for (int n = 0; n < bound / 8; n++) {
          if (n * 8 >= ranks) break;
          unsigned right[TA_WEIGHT_PLANES][2];
          ta_right(right, transposed ? weights + n * 8 * pitch + k : weights + k * pitch + n * 8, pitch, !transposed);
          ta_multiply(products[n], left, right);
        }
      }
      float* out = sums.narrow_sums +
                   ((static_cast<ta_i64>(slice) * gridDim.y + blockIdx.y) * sums.positions + first) * sums.stride + rank;
#pragma unroll
      for (int n = 0; n < bound / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int m = warp * 16 + lane / 4 + i / 2 * 8, j = n * 8 + lane % 4 * 2 + i % 2;
          if (m < count && j < ranks) out[static_cast<ta_i64>(m) * sums.stride + j] = products[n][i];
        }
      }
    }
  }
  const ta_i64 at = (static_cast<ta_i64>(slice) * gridDim.x + blockIdx.x) * sums.columns + begin;
#pragma unroll
  for (int half = 0; half < 2; half++) {
#pragma unroll
    for (int n = 0; n < bound / 8; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int column = warp * 32 + half * 16 + lane / 4 + i / 2 * 8, j = n * 8 + lane % 4 * 2 + i % 2;
        if (begin + column < wide.width && j < ranks) {
          sums.gradients[(at + column) * sums.stride + rank + j] = gradient[half][n][i];
        }
      }
    }
  }
}

// grid (chunks, columns / TA_BACKWARD_WIDTH, slices x blocks of `bound` ranks). mma_both gives dB and the parts of dS
// from dY and S; mma_gradient gives dA from X and dS.
#define TA_MMA_BACKWARD(name, bound, both)                                                                         \
  extern "C" __global__ void __launch_bounds__(TA_MMA_THREADS, 2)                                                  \
      name(float* gradients, float* narrow_sums, const float* narrow, ta_row* wide0, ta_i64 row0, int width0,      \
           ta_row* wide1, ta_i64 row1, int width1, ta_row* wide2, ta_i64 row2, int width2,                         \
           const ta_adapter* table, int slots, const int4* chunks, const int* perm, int positions, int stride,     \
           int columns, int rank_blocks) {                                                                         \
    const int4 chunk = chunks[blockIdx.x];                                                                         \
    if (chunk.z <= 0) return;                                                                                      \
    const int slice = blockIdx.z / rank_blocks, rank = blockIdx.z % rank_blocks * bound;                           \
    const ta_adapter adapter = table[slice * slots + chunk.x];                                                     \
    const ta_output wide = ta_pick(slice, wide0, row0, width0, wide1, row1, width1, wide2, row2, width2);          \
    if (rank >= adapter.rank || static_cast<int>(blockIdx.y) * TA_BACKWARD_WIDTH >= wide.width) return;            \
    const ta_backward sums = {gradients, narrow_sums, narrow, columns, positions, stride};                         \
    ta_mma_backward<bound, both>(sums, wide, slice, adapter, chunk, perm, rank);                                   \
  }

TA_MMA_BACKWARD(mma_both_16, 16, true)
TA_MMA_BACKWARD(mma_both_32, 32, true)
TA_MMA_BACKWARD(mma_both_64, 64, true)
TA_MMA_BACKWARD(mma_gradient_16, 16, false)
TA_MMA_BACKWARD(mma_gradient_32, 32, false)
TA_MMA_BACKWARD(mma_gradient_64, 64, false)

// grid (tiles, 1, slices). Partial sums put together and scaled: [slice][position][stride]. A slice has a split for
// every `per_split` of its width; `splits` says how many the partial sums have room for.
extern "C" __global__ void __launch_bounds__(TA_MMA_THREADS)
    sum_narrow(float* narrow, const float* partials, int splits, int per_split, int width0, int width1, int width2,
               const ta_adapter* table, int slots, const int4* tiles, int positions, int stride) {
  const int4 tile = tiles[blockIdx.x];
  if (tile.z <= 0) return;
  const ta_adapter adapter = table[blockIdx.z * slots + tile.x];
  if (adapter.rank <= 0) return;
  const int width = blockIdx.z == 0 ? width0 : blockIdx.z == 1 ? width1 : width2;
  const ta_i64 split_stride = static_cast<ta_i64>(positions) * stride;
  for (int at = threadIdx.x; at < tile.z * adapter.rank; at += TA_MMA_THREADS) {
    const ta_i64 place = static_cast<ta_i64>(tile.y + at / adapter.rank) * stride + at % adapter.rank;
    const float* first = partials + blockIdx.z * splits * split_stride + place;
    narrow[blockIdx.z * split_stride + place] =
        adapter.scale * ta_sum_splits(first, (width + per_split - 1) / per_split, split_stride);
  }
}

// grid (columns / TA_MMA_THREADS, segments, slices). A segment is an int4 {slot, first chunk, chunks, 0}. The chunks of
// a gradient are put together in their order and written where the table of gradients says, to A's place or to B's;
// rank 0 there says that nobody wants it.
extern "C" __global__ void __launch_bounds__(TA_MMA_THREADS)
    sum_gradients(const float* gradients, int chunks, int columns, int stride, int width0, int width1, int width2,
                  const ta_adapter* table, int slots, const int4* segments, int by_b) {
  const int4 segment = segments[blockIdx.y];
  if (segment.z <= 0) return;
  const ta_adapter adapter = table[blockIdx.z * slots + segment.x];
  const int width = blockIdx.z == 0 ? width0 : blockIdx.z == 1 ? width1 : width2;
  const int begin = blockIdx.x * TA_MMA_THREADS, count = min(TA_MMA_THREADS, width - begin);
  const ta_side side = ta_pick_side(adapter, by_b != 0);
  const ta_i64 chunk_stride = static_cast<ta_i64>(columns) * stride;
  const float* from = gradients + (static_cast<ta_i64>(blockIdx.z) * chunks + segment.y) * chunk_stride;
  for (int at = threadIdx.x; at < count * adapter.rank; at += TA_MMA_THREADS) {
    // neighbouring threads write neighbouring places
    const int i = begin + (side.by_rank() ? at % count : at / adapter.rank);
    const int j = side.by_rank() ? at / count : at % adapter.rank;
    const float sum = ta_sum_splits(from + static_cast<ta_i64>(i) * stride + j, segment.z, chunk_stride);
    ta_store(const_cast<ta_weight*>(side.p) + j * side.per_rank + i * side.per_feature, sum);
  }
}
