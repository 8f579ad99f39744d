// What the kernels stand on: every PTX instruction they use, and the scalar types of rows and weights.
//
// No other file contains inline PTX, and nothing is included, so NVRTC compiles the sources with no include path.
// With TA_EMULATED defined the block that speaks PTX is left out: whoever builds the sources for a CPU supplies
// functions of the same names, and the CUDA built-ins (threadIdx, __syncthreads, __shfl_xor_sync, ...), before it.
//
// Rules that the kernels keep, so that both worlds agree:
// - warps are full, and all 32 lanes reach every warp-wide operation (ta_ldmatrix*, ta_mma, shuffles) together;
// - addresses for 16-byte accesses are multiples of 16;
// - pointers out of tables are dereferenced only by ta_read/ta_load/ta_store, which say that they are global memory.
#pragma once

#ifndef TA_EMULATED

typedef unsigned short ta_u16;
typedef long long ta_i64;
typedef unsigned long long ta_u64;

struct ta_bf16 { ta_u16 bits; };
struct ta_half { ta_u16 bits; };

extern __shared__ __align__(128) unsigned char ta_shared_memory[];

// The block's dynamic shared memory, aligned to 128 bytes.
__device__ __forceinline__ unsigned char* ta_shared() { return ta_shared_memory; }

__device__ __forceinline__ unsigned ta_shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// ---- clusters (sm_90 and later) ----

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// This block's place in its cluster.
__device__ __forceinline__ unsigned ta_cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of the cluster; what they wrote to shared memory before is seen after.
__device__ __forceinline__ void ta_cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

// The float that lies in block `rank`'s shared memory where `mine` lies in this block's.
__device__ __forceinline__ float ta_peer_read(const float* mine, unsigned rank) {
  unsigned address;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(ta_shared_address(mine)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
#endif

// ---- asynchronous copies from global to shared memory ----

// 16 bytes, of which the first `bytes` are read and the rest become zero; with bytes 0 nothing is read.
__device__ __forceinline__ void ta_copy16(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(ta_shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes)
               : "memory");
}

// Close the group of copies begun since the last commit.
__device__ __forceinline__ void ta_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until all but the last `pending` groups of this thread have arrived.
template <int pending>
__device__ __forceinline__ void ta_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// ---- tensor cores ----

// Four 8x8 matrices of 16-bit values; lanes 8i..8i+7 give the addresses of matrix i's rows.
__device__ __forceinline__ void ta_ldmatrix4(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(ta_shared_address(row))
               : "memory");
}

// The same, each matrix transposed on the way.
__device__ __forceinline__ void ta_ldmatrix4_trans(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(ta_shared_address(row))
               : "memory");
}

// Two 8x8 matrices; lanes 0..15 give the addresses of their rows.
__device__ __forceinline__ void ta_ldmatrix2(unsigned (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(ta_shared_address(row))
               : "memory");
}

// The same, each matrix transposed on the way.
__device__ __forceinline__ void ta_ldmatrix2_trans(unsigned (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(ta_shared_address(row))
               : "memory");
}

// d += a b, where a is 16x16 by rows, b 16x8 by columns, both bfloat16, and d 16x8 in float32.
__device__ __forceinline__ void ta_mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// ---- global memory: ta_read for what nobody writes while the kernel runs, ta_load and ta_store for the rest ----

__device__ __forceinline__ uint4 ta_read16(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(__cvta_generic_to_global(p)));
  return v;
}

__device__ __forceinline__ uint4 ta_load16(const void* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(__cvta_generic_to_global(p))
               : "memory");
  return v;
}

__device__ __forceinline__ void ta_store16(void* p, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ ta_u16 ta_read_u16(const void* p) {
  ta_u16 v;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(__cvta_generic_to_global(p)));
  return v;
}

__device__ __forceinline__ ta_u16 ta_load_u16(const void* p) {
  ta_u16 v;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
  return v;
}

__device__ __forceinline__ void ta_store_u16(void* p, ta_u16 v) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "h"(v) : "memory");
}

__device__ __forceinline__ float ta_read_f32(const void* p) {
  float v;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(__cvta_generic_to_global(p)));
  return v;
}

__device__ __forceinline__ float ta_load_f32(const void* p) {
  float v;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
  return v;
}

__device__ __forceinline__ void ta_store_f32(void* p, float v) {
  asm volatile("st.global.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "f"(v) : "memory");
}

// ---- conversions, rounding to nearest even ----

__device__ __forceinline__ float ta_half_to_float(ta_u16 bits) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
  return v;
}

__device__ __forceinline__ ta_u16 ta_float_to_half(float v) {
  ta_u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
  return bits;
}

__device__ __forceinline__ ta_u16 ta_float_to_bf16(float v) {
  ta_u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(v));
  return bits;
}

// Two bfloat16 in one register, `low` in the lower half.
__device__ __forceinline__ unsigned ta_pack_bf16(float low, float high) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

#endif  // TA_EMULATED

// ---- one name for each operation, whatever the scalar type ----

__device__ __forceinline__ float ta_bf16_to_float(ta_u16 bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

__device__ __forceinline__ float ta_float(float v) { return v; }
__device__ __forceinline__ float ta_float(ta_bf16 v) { return ta_bf16_to_float(v.bits); }
__device__ __forceinline__ float ta_float(ta_half v) { return ta_half_to_float(v.bits); }

__device__ __forceinline__ float ta_read(const float* p) { return ta_read_f32(p); }
__device__ __forceinline__ float ta_read(const ta_bf16* p) { return ta_bf16_to_float(ta_read_u16(p)); }
__device__ __forceinline__ float ta_read(const ta_half* p) { return ta_half_to_float(ta_read_u16(p)); }

__device__ __forceinline__ float ta_load(const float* p) { return ta_load_f32(p); }
__device__ __forceinline__ float ta_load(const ta_bf16* p) { return ta_bf16_to_float(ta_load_u16(p)); }
__device__ __forceinline__ float ta_load(const ta_half* p) { return ta_half_to_float(ta_load_u16(p)); }

__device__ __forceinline__ void ta_store(float* p, float v) { ta_store_f32(p, v); }
__device__ __forceinline__ void ta_store(ta_bf16* p, float v) { ta_store_u16(p, ta_float_to_bf16(v)); }
__device__ __forceinline__ void ta_store(ta_half* p, float v) { ta_store_u16(p, ta_float_to_half(v)); }

// How many of a type make up a 16-byte access.
template <class T>
struct ta_wide {
  static constexpr int count = 16 / sizeof(T);
};

// 16 bytes as floats.
__device__ __forceinline__ void ta_unpack(float (&out)[4], uint4 v, float) {
  out[0] = __uint_as_float(v.x);
  out[1] = __uint_as_float(v.y);
  out[2] = __uint_as_float(v.z);
  out[3] = __uint_as_float(v.w);
}

__device__ __forceinline__ void ta_unpack(float (&out)[8], uint4 v, ta_bf16) {
  const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ void ta_unpack(float (&out)[8], uint4 v, ta_half) {
  const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    out[2 * i] = ta_half_to_float(static_cast<ta_u16>(words[i] & 0xffffu));
    out[2 * i + 1] = ta_half_to_float(static_cast<ta_u16>(words[i] >> 16));
  }
}

// Floats as 16 bytes of a type, each rounded once.
__device__ __forceinline__ uint4 ta_pack(const float (&in)[4], float) {
  return make_uint4(__float_as_uint(in[0]), __float_as_uint(in[1]), __float_as_uint(in[2]), __float_as_uint(in[3]));
}

__device__ __forceinline__ uint4 ta_pack(const float (&in)[8], ta_bf16) {
  return make_uint4(ta_pack_bf16(in[0], in[1]), ta_pack_bf16(in[2], in[3]), ta_pack_bf16(in[4], in[5]),
                    ta_pack_bf16(in[6], in[7]));
}

__device__ __forceinline__ uint4 ta_pack(const float (&in)[8], ta_half) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    words[i] = ta_float_to_half(in[2 * i]) | static_cast<unsigned>(ta_float_to_half(in[2 * i + 1])) << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}
