// Operands of the tensor cores out of shared memory, for rows and weights of any type.
//
// The tensor cores multiply bfloat16. A float16 value is the exact sum of two bfloat16 and a float32 value of three, so
// operands are taken apart into planes, and products of planes that could still matter are added up in float32: rows
// and weights of 16 bits lose nothing, and float32 comes out as float32 arithmetic would have it.
#pragma once

constexpr int TA_MMA_THREADS = 128;  // of a block: four warps
constexpr int TA_MMA_ROWS = 64;      // of a tile, at most: sixteen for each warp

template <class T>
struct ta_planes {
  static constexpr int count = 3;
};
template <>
struct ta_planes<ta_half> {
  static constexpr int count = 2;
};
template <>
struct ta_planes<ta_bf16> {
  static constexpr int count = 1;
};

constexpr int TA_ROW_PLANES = ta_planes<ta_row>::count;
// float32 weights of 16-bit rows: two planes are two hundred times finer than the rows
constexpr int TA_WEIGHT_PLANES = sizeof(ta_row) == 2 && sizeof(ta_weight) == 4 ? 2 : ta_planes<ta_weight>::count;
// sums between the two products are float32 in memory
constexpr int TA_SUM_PLANES = sizeof(ta_row) == 2 ? 2 : 3;

// Elements between lines of a tile in shared memory: 16 bytes more than a line has, so that eight lines' groups of 16
// bytes lie in different banks.
template <class T>
__host__ __device__ constexpr int ta_pitch(int columns) {
  return columns + ta_wide<T>::count;
}

__device__ __forceinline__ float ta_get(const float* p) { return ta_read_f32(p); }
__device__ __forceinline__ ta_bf16 ta_get(const ta_bf16* p) { return ta_bf16{ta_read_u16(p)}; }
__device__ __forceinline__ ta_half ta_get(const ta_half* p) { return ta_half{ta_read_u16(p)}; }

// Begin copying a tile of lines x columns to shared memory, zero beyond `limit` columns and where line(l) is null.
// `wide` says that every line begins at a multiple of 16 bytes. Complete after ta_copy_wait and __syncthreads.
template <int lines, int columns, class T, class Line>
__device__ __forceinline__ void ta_stage_tile(T* shared, const Line& line, int limit, bool wide) {
  constexpr int group = ta_wide<T>::count, groups = columns / group;
  for (int at = threadIdx.x; at < lines * groups; at += TA_MMA_THREADS) {
    const int l = at / groups, column = at % groups * group;
    const T* from = line(l);
    T* to = shared + l * ta_pitch<T>(columns) + column;
    const int count = from == nullptr ? 0 : max(0, min(group, limit - column));
    if (count == 0) {
      *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    } else if (wide) {
      ta_copy16(to, from + column, count * static_cast<int>(sizeof(T)));
    } else {
#pragma unroll
      for (int i = 0; i < group; i++) to[i] = i < count ? ta_get(from + column + i) : T();
    }
  }
}

// What is left of a value once its first bfloat16 is taken away; nothing is left of infinity.
__device__ __forceinline__ float ta_rest(float value, unsigned first) {
  const float taken = __uint_as_float(first);
  return (first & 0x7fffffffu) == 0x7f800000u ? 0.f : value - taken;
}

// Two neighbouring values as planes, most significant first.
template <int planes>
__device__ __forceinline__ void ta_split(unsigned (&out)[planes], float low, float high) {
#pragma unroll
  for (int plane = 0; plane < planes; plane++) {
    out[plane] = ta_pack_bf16(low, high);
    low = ta_rest(low, out[plane] << 16);
    high = ta_rest(high, out[plane] & 0xffff0000u);
  }
}

template <int planes, int registers>
__device__ __forceinline__ void ta_split_halves(unsigned (&out)[planes][registers], const unsigned (&halves)[registers]) {
#pragma unroll
  for (int i = 0; i < registers; i++) {
    unsigned pair[planes];
    ta_split(pair, ta_half_to_float(static_cast<ta_u16>(halves[i] & 0xffffu)),
             ta_half_to_float(static_cast<ta_u16>(halves[i] >> 16)));
#pragma unroll
    for (int plane = 0; plane < planes; plane++) out[plane][i] = pair[plane];
  }
}

template <int registers>
__device__ __forceinline__ void ta_ldmatrix(unsigned (&r)[registers], const void* row, bool transposed);
template <>
__device__ __forceinline__ void ta_ldmatrix<4>(unsigned (&r)[4], const void* row, bool transposed) {
  if (transposed) {
    ta_ldmatrix4_trans(r, row);
  } else {
    ta_ldmatrix4(r, row);
  }
}
template <>
__device__ __forceinline__ void ta_ldmatrix<2>(unsigned (&r)[2], const void* row, bool transposed) {
  if (transposed) {
    ta_ldmatrix2_trans(r, row);
  } else {
    ta_ldmatrix2(r, row);
  }
}

template <int registers>
__device__ __forceinline__ void ta_fill(unsigned (&out)[1][registers], const ta_bf16* row, bool transposed) {
  ta_ldmatrix(out[0], row, transposed);
}
template <int registers>
__device__ __forceinline__ void ta_fill(unsigned (&out)[2][registers], const ta_half* row, bool transposed) {
  unsigned halves[registers];
  ta_ldmatrix(halves, row, transposed);
  ta_split_halves(out, halves);
}

// Rows 0..15 and terms 0..15 of a left operand: [row][term] in shared memory, or [term][row] where transposed.
template <int planes, class T>
__device__ __forceinline__ void ta_left(unsigned (&out)[planes][4], const T* tile, int pitch, bool transposed) {
  const int lane = threadIdx.x % 32;
  const T* row = transposed ? tile + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8
                            : tile + lane % 16 * pitch + lane / 16 * 8;
  ta_fill(out, row, transposed);
}
template <int planes>
__device__ __forceinline__ void ta_left(unsigned (&out)[planes][4], const float* tile, int pitch, bool transposed) {
  const int lane = threadIdx.x % 32, per_row = transposed ? 1 : pitch, per_term = transposed ? pitch : 1;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float* p = tile + (lane / 4 + i % 2 * 8) * per_row + (lane % 4 * 2 + i / 2 * 8) * per_term;
    unsigned pair[planes];
    ta_split(pair, p[0], p[per_term]);
#pragma unroll
    for (int plane = 0; plane < planes; plane++) out[plane][i] = pair[plane];
  }
}

// Terms 0..15 and columns 0..7 of a right operand: [column][term] in shared memory, or [term][column] where transposed.
template <int planes, class T>
__device__ __forceinline__ void ta_right(unsigned (&out)[planes][2], const T* tile, int pitch, bool transposed) {
  const int lane = threadIdx.x % 32;
  const T* row = transposed ? tile + lane % 16 * pitch : tile + lane % 8 * pitch + lane / 8 % 2 * 8;
  ta_fill(out, row, transposed);
}
template <int planes>
__device__ __forceinline__ void ta_right(unsigned (&out)[planes][2], const float* tile, int pitch, bool transposed) {
  const int lane = threadIdx.x % 32, per_column = transposed ? 1 : pitch, per_term = transposed ? pitch : 1;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float* p = tile + lane / 4 * per_column + (lane % 4 * 2 + i * 8) * per_term;
    unsigned pair[planes];
    ta_split(pair, p[0], p[per_term]);
#pragma unroll
    for (int plane = 0; plane < planes; plane++) out[plane][i] = pair[plane];
  }
}

// d += left right, least significant products first.
template <int left_planes, int right_planes>
__device__ __forceinline__ void ta_multiply(float (&d)[4], const unsigned (&left)[left_planes][4],
                                            const unsigned (&right)[right_planes][2]) {
  constexpr int kept = left_planes > right_planes ? left_planes : right_planes;
#pragma unroll
  for (int order = kept - 1; order >= 0; order--) {
#pragma unroll
    for (int i = 0; i < left_planes; i++) {
      if (order - i >= 0 && order - i < right_planes) ta_mma(d, left[i], right[order - i]);
    }
  }
}

// An adapter's A or B seen the same way: the weight of rank j and input or output i is at
// p + j per_rank + i per_feature.
struct ta_side {
  const ta_weight* p;
  ta_i64 per_rank;
  ta_i64 per_feature;

  // whether features lie side by side, else ranks do
  __device__ __forceinline__ bool by_rank() const { return per_feature == 1; }
};

__device__ __forceinline__ ta_side ta_pick_side(const ta_adapter& adapter, bool b) {
  ta_side side;
  side.p = reinterpret_cast<const ta_weight*>(b ? adapter.b : adapter.a);
  side.per_rank = b ? adapter.b_rank : adapter.a_rank;
  side.per_feature = b ? adapter.b_out : adapter.a_in;
  return side;
}

// Weights of features [begin, begin + features) and ranks [rank, rank + ranks) to shared memory, by rank or by feature
// as they lie; zero outside `limit` features and `rank_limit` ranks.
template <int features, int ranks>
__device__ __forceinline__ void ta_stage_weights(ta_weight* shared, const ta_side& side, int begin, int limit, int rank,
                                                 int rank_limit) {
  const ta_weight* p = side.p + begin * side.per_feature + rank * side.per_rank;
  if (side.by_rank()) {
    const bool wide = ta_is_wide(p, side.per_rank);
    ta_stage_tile<ranks, features>(
        shared, [&](int j) { return rank + j < rank_limit ? p + j * side.per_rank : nullptr; }, limit - begin, wide);
  } else {
    const bool wide = ta_is_wide(p, side.per_feature);
    ta_stage_tile<features, ranks>(
        shared, [&](int i) { return begin + i < limit ? p + i * side.per_feature : nullptr; }, rank_limit - rank, wide);
  }
}

// Elements of shared memory that ta_stage_weights needs.
template <int features, int ranks>
__host__ __device__ constexpr int ta_weights_size() {
  return ranks * ta_pitch<ta_weight>(features) > features * ta_pitch<ta_weight>(ranks)
             ? ranks * ta_pitch<ta_weight>(features)
             : features * ta_pitch<ta_weight>(ranks);
}
