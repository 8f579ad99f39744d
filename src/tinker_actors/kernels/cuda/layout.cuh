// What the host lays out for the kernels, and how they read it.
//
// The sources are compiled once for each pair of types: TA_ROW of the token matrix, TA_WEIGHT of the adapters.
//
// - A tile is an int4 {slot, first, count, 0}: rows perm[first .. first+count) of the matrix, all of one adapter.
//   Their place in perm is called the position. A tile with count 0 is unused; its blocks leave at once.
// - A slice is one of up to three projections that share their input (q, k and v; gate and up), and so a launch.
// - The table holds an adapter for each (slice, slot); rank 0 says that the slot leaves the projection alone.
// - Products with the narrow side are kept as partial sums, float32 [slice][split][position][stride], and are always
//   summed by ascending split, so that no result depends on the order in which blocks ran.
#pragma once

typedef TA_ROW ta_row;
typedef TA_WEIGHT ta_weight;

// A[j][i] lies at a + j a_rank + i a_in and B[o][j] at b + o b_out + j b_rank, strides in elements; of each pair of
// strides one is 1.
struct ta_adapter {
  ta_u64 a;
  ta_u64 b;
  ta_i64 a_rank;
  ta_i64 a_in;
  ta_i64 b_out;
  ta_i64 b_rank;
  int rank;
  float scale;
};

// Three projections' outputs: y of [rows, width], rows y_row elements apart.
struct ta_output {
  ta_row* y;
  ta_i64 y_row;
  int width;
};

__device__ __forceinline__ ta_output ta_pick(int slice, ta_row* y0, ta_i64 row0, int width0, ta_row* y1, ta_i64 row1,
                                             int width1, ta_row* y2, ta_i64 row2, int width2) {
  ta_output output;
  output.y = slice == 0 ? y0 : slice == 1 ? y1 : y2;
  output.y_row = slice == 0 ? row0 : slice == 1 ? row1 : row2;
  output.width = slice == 0 ? width0 : slice == 1 ? width1 : width2;
  return output;
}

// Whether a matrix whose contiguous lines are `line` elements apart can be read 16 bytes at a time.
template <class T>
__device__ __forceinline__ bool ta_is_wide(const T* p, ta_i64 line) {
  return ((reinterpret_cast<ta_u64>(p) | static_cast<ta_u64>(line) * sizeof(T)) & 15) == 0;
}

// The first `count` of a 16-byte group as floats, the rest zero.
template <class T>
__device__ __forceinline__ void ta_read_group(float (&out)[ta_wide<T>::count], const T* p, int count, bool wide) {
  if (wide && count >= ta_wide<T>::count) {
    ta_unpack(out, ta_read16(p), T());
  } else {
#pragma unroll
    for (int i = 0; i < ta_wide<T>::count; i++) out[i] = i < count ? ta_read(p + i) : 0.f;
  }
}

// A row's partial sums put together in order. `partials` is at [split 0][position][j].
__device__ __forceinline__ float ta_sum_splits(const float* partials, int splits, ta_i64 split_stride) {
  float sum = 0.f;
  for (int split = 0; split < splits; split++) sum += ta_load_f32(partials + split * split_stride);
  return sum;
}
