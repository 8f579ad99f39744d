// The CUDA built-ins that the kernels use, and the operations that prelude.cuh writes in PTX.
//
// Differences that remain: float32 products and sums are not fused, denormals are kept, and a tensor core's sums are
// rounded to float32 at each step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "runtime.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::current->block->index)
#define blockDim (emulator::block_dim)
#define gridDim (emulator::grid_dim)

// Where the caller stands; as the default of a single struct it would be this file.
#define EMULATOR_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

struct alignas(8) int2 { int x, y; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };

inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }

template <class To, class From>
To emulator_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline float __uint_as_float(unsigned bits) { return emulator_bits<float>(bits); }
inline unsigned __float_as_uint(float value) { return emulator_bits<unsigned>(value); }

// ---- barriers and shuffles ----

inline void __syncthreads(EMULATOR_CALLER) { emulator::pass_block_gate({file, line}); }

inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATOR_CALLER) {
  emulator::pass_warp_gate(mask, nullptr, 0, {file, line});
}

template <class T>
T emulator_shuffle(unsigned mask, T value, int from, emulator::Site site) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  const auto slots = emulator::pass_warp_gate(mask, &word, 1, site);
  std::memcpy(&value, slots[from], sizeof value);
  return value;
}

template <class T>
T __shfl_sync(unsigned mask, T value, int from, EMULATOR_CALLER) {
  return emulator_shuffle(mask, value, from & 31, {file, line});
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, EMULATOR_CALLER) {
  return emulator_shuffle(mask, value, (emulator::current->lane ^ lanes) & 31, {file, line});
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, EMULATOR_CALLER) {
  const int lane = emulator::current->lane, from = lane + static_cast<int>(lanes);
  return emulator_shuffle(mask, value, from < 32 ? from : lane, {file, line});
}

// ---- scalar types and conversions ----

typedef std::uint16_t ta_u16;
typedef std::int64_t ta_i64;
typedef std::uint64_t ta_u64;

struct ta_bf16 { ta_u16 bits; };
struct ta_half { ta_u16 bits; };

inline float ta_half_to_float(ta_u16 bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float value = exponent == 31 ? (mantissa ? NAN : INFINITY)
                : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                : std::ldexp(static_cast<float>(mantissa | 1024), exponent - 25);
  return bits & 0x8000 ? -value : value;
}

inline ta_u16 ta_float_to_half(float value) {
  const unsigned sign = __float_as_uint(value) >> 16 & 0x8000;
  const float size = std::fabs(value);
  if (!(size == size)) return 0x7fff;
  if (size == 0.f) return static_cast<ta_u16>(sign);
  if (size >= 65520.f) return static_cast<ta_u16>(sign | 0x7c00);
  int exponent = 0;
  std::frexp(size, &exponent);  // size = m 2^exponent, m in [1/2, 1)
  exponent = max(exponent, -13);
  // in units of the last place; rounded to even by the default rounding mode, and a carry moves to the exponent
  const auto units = static_cast<unsigned>(std::nearbyint(std::ldexp(size, 11 - exponent)));
  return static_cast<ta_u16>(sign | (units + (static_cast<unsigned>(exponent + 13) << 10)));
}

inline ta_u16 ta_float_to_bf16(float value) {
  const unsigned bits = __float_as_uint(value);
  if (value != value) return 0x7fff;
  return static_cast<ta_u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline unsigned ta_pack_bf16(float low, float high) {
  return ta_float_to_bf16(low) | static_cast<unsigned>(ta_float_to_bf16(high)) << 16;
}

// ---- global memory ----

template <class T>
T emulator_get(emulator::Access access, const void* p) {
  emulator::announce(access, p, sizeof(T));
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <class T>
void emulator_put(void* p, T value) {
  emulator::announce(emulator::Access::store, p, sizeof value);
  std::memcpy(p, &value, sizeof value);
}

inline uint4 ta_read16(const void* p) { return emulator_get<uint4>(emulator::Access::read_only, p); }
inline uint4 ta_load16(const void* p) { return emulator_get<uint4>(emulator::Access::load, p); }
inline void ta_store16(void* p, uint4 v) { emulator_put(p, v); }
inline ta_u16 ta_read_u16(const void* p) { return emulator_get<ta_u16>(emulator::Access::read_only, p); }
inline ta_u16 ta_load_u16(const void* p) { return emulator_get<ta_u16>(emulator::Access::load, p); }
inline void ta_store_u16(void* p, ta_u16 v) { emulator_put(p, v); }
inline float ta_read_f32(const void* p) { return emulator_get<float>(emulator::Access::read_only, p); }
inline float ta_load_f32(const void* p) { return emulator_get<float>(emulator::Access::load, p); }
inline void ta_store_f32(void* p, float v) { emulator_put(p, v); }

// ---- shared memory, clusters, asynchronous copies ----

inline unsigned char* ta_shared() { return emulator::current->block->shared; }
inline unsigned ta_cluster_rank() { return emulator::current->block->rank; }
inline void ta_cluster_sync(EMULATOR_CALLER) { emulator::pass_cluster_gate({file, line}); }

inline float ta_peer_read(const float* mine, unsigned rank) {
  float value;
  std::memcpy(&value, emulator::peer_address(mine, sizeof value, rank), sizeof value);
  return value;
}

inline void ta_copy16(void* shared, const void* global, int bytes) { emulator::begin_copy(shared, global, bytes); }
inline void ta_copy_commit() { emulator::commit_copies(); }
template <int pending>
void ta_copy_wait() { emulator::wait_for_copies(pending); }

// ---- tensor cores ----

// Each lane hands in the row that it was asked to name; the lanes beyond 8 count hand in nothing that is read.
template <int count, bool transposed>
void emulator_load_matrices(unsigned (&r)[count], const void* row, emulator::Site site) {
  const int lane = emulator::current->lane;
  std::uint64_t words[2] = {};
  if (lane < 8 * count) {
    emulator::check_shared(row, sizeof words);
    std::memcpy(words, row, sizeof words);
  }
  const auto slots = emulator::pass_warp_gate(0xffffffffu, words, 2, site);
  for (int i = 0; i < count; i++) {
    const auto value = [&](int m, int n) {
      ta_u16 bits;
      std::memcpy(&bits, reinterpret_cast<const unsigned char*>(slots[8 * i + m]) + 2 * n, sizeof bits);
      return static_cast<unsigned>(bits);
    };
    const int line = lane / 4, pair = lane % 4 * 2;
    r[i] = transposed ? value(pair, line) | value(pair + 1, line) << 16
                      : value(line, pair) | value(line, pair + 1) << 16;
  }
}

inline void ta_ldmatrix4(unsigned (&r)[4], const void* row, EMULATOR_CALLER) {
  emulator_load_matrices<4, false>(r, row, {file, line});
}
inline void ta_ldmatrix4_trans(unsigned (&r)[4], const void* row, EMULATOR_CALLER) {
  emulator_load_matrices<4, true>(r, row, {file, line});
}
inline void ta_ldmatrix2(unsigned (&r)[2], const void* row, EMULATOR_CALLER) {
  emulator_load_matrices<2, false>(r, row, {file, line});
}
inline void ta_ldmatrix2_trans(unsigned (&r)[2], const void* row, EMULATOR_CALLER) {
  emulator_load_matrices<2, true>(r, row, {file, line});
}

// Lane l holds rows l/4 and l/4 + 8 of A and D and column l/4 of B, in pairs of neighbours 2 (l%4), and 8 further.
inline void ta_mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], EMULATOR_CALLER) {
  std::uint64_t words[3];
  std::memcpy(&words[0], a, sizeof a);
  std::memcpy(&words[2], b, sizeof b);
  const auto slots = emulator::pass_warp_gate(0xffffffffu, words, 3, {file, line});
  const int row = emulator::current->lane / 4, pair = emulator::current->lane % 4 * 2;
  float a_values[2][16], b_values[2][16];
  for (int part = 0; part < 4; part++) {
    unsigned registers[6];
    std::memcpy(registers, slots[row * 4 + part], sizeof registers);
    for (int i = 0; i < 8; i++) {
      const int half = i % 2, register_of_a = i / 2, k = part * 2 + half + register_of_a / 2 * 8;
      a_values[register_of_a % 2][k] = __uint_as_float(half ? registers[register_of_a] & 0xffff0000u
                                                            : registers[register_of_a] << 16);
    }
    for (int column = 0; column < 2; column++) {
      std::memcpy(registers, slots[(pair + column) * 4 + part], sizeof registers);
      for (int i = 0; i < 4; i++) {
        const unsigned word = registers[4 + i / 2];
        b_values[column][part * 2 + i % 2 + i / 2 * 8] = __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
      }
    }
  }
  for (int i = 0; i < 4; i++) {
    float sum = 0.f;
    for (int k = 0; k < 16; k++) sum += a_values[i / 2][k] * b_values[i % 2][k];
    d[i] += sum;
  }
}
