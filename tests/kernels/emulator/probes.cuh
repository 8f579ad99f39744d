// Kernels that show the emulated machine itself: what its operations compute, and what it refuses.
#pragma once

// matrix: 16x16 values of 16 bits. out[lane]: ldmatrix4, ldmatrix4_trans, ldmatrix2, ldmatrix2_trans: 12 registers.
extern "C" __global__ void __launch_bounds__(32) load_fragments(const ta_u16* matrix, unsigned* out) {
  ta_u16* shared = reinterpret_cast<ta_u16*>(ta_shared());
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) shared[i / 16 * 24 + i % 16] = matrix[i];
  __syncthreads();
  const ta_u16* row = shared + lane % 16 * 24 + lane / 16 * 8;
  unsigned four[4], two[2];
  ta_ldmatrix4(four, row);
  for (int i = 0; i < 4; i++) out[lane * 12 + i] = four[i];
  ta_ldmatrix4_trans(four, row);
  for (int i = 0; i < 4; i++) out[lane * 12 + 4 + i] = four[i];
  ta_ldmatrix2(two, lane < 16 ? row : nullptr);
  for (int i = 0; i < 2; i++) out[lane * 12 + 8 + i] = two[i];
  ta_ldmatrix2_trans(two, lane < 16 ? row : nullptr);
  for (int i = 0; i < 2; i++) out[lane * 12 + 10 + i] = two[i];
}

// Registers of each lane: a [32][4], b [32][2], d [32][4].
extern "C" __global__ void __launch_bounds__(32) multiply_fragments(const unsigned* a, const unsigned* b, float* d) {
  const int lane = threadIdx.x;
  unsigned left[4], right[2];
  float sums[4];
  for (int i = 0; i < 4; i++) left[i] = a[lane * 4 + i];
  for (int i = 0; i < 2; i++) right[i] = b[lane * 2 + i];
  for (int i = 0; i < 4; i++) sums[i] = d[lane * 4 + i];
  ta_mma(sums, left, right);
  for (int i = 0; i < 4; i++) d[lane * 4 + i] = sums[i];
}

extern "C" __global__ void __launch_bounds__(32) round_floats(const float* in, ta_u16* half, ta_u16* bf16, int count) {
  for (int i = threadIdx.x; i < count; i += 32) {
    ta_store_u16(half + i, ta_float_to_half(ta_read_f32(in + i)));
    ta_store_u16(bf16 + i, ta_float_to_bf16(ta_read_f32(in + i)));
  }
}

extern "C" __global__ void __launch_bounds__(32) widen_halves(const ta_u16* in, float* out, int count) {
  for (int i = threadIdx.x; i < count; i += 32) ta_store_f32(out + i, ta_half_to_float(ta_read_u16(in + i)));
}

// Blocks of two warps in clusters of two. Each mistake leaves the kernel wrong, or at the mercy of timing, on a GPU.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(64)
    misbehave(int mistake, float* out, const float* in) {
  float* shared = reinterpret_cast<float*>(ta_shared());
  const int thread = threadIdx.x, block = blockIdx.x;
  if (mistake == 0) {  // none: neighbours exchange values through shared memory
    shared[thread] = ta_read_f32(in + thread);
    __syncthreads();
    ta_store_f32(out + block * 64 + thread, shared[63 - thread]);
  } else if (mistake == 1) {  // a barrier that a warp never reaches
    if (thread < 32) __syncthreads();
  } else if (mistake == 2) {  // barriers in two branches
    if (thread < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  } else if (mistake == 3) {  // a shuffle without all lanes
    if (thread % 32 != 31) __shfl_xor_sync(0xffffffffu, 1.f, 1);
  } else if (mistake == 4) {  // some wait for the block, some for the cluster
    if (thread < 32) {
      __syncthreads();
    } else {
      ta_cluster_sync();
    }
  } else if (mistake == 5) {  // beyond shared memory
    shared[thread + 4096] = 1.f;
  } else if (mistake == 6) {  // beyond the tensor
    ta_store_f32(out + thread, ta_read_f32(in + 64 + thread));
  } else if (mistake == 7) {  // two blocks write to one place
    if (thread == 0) ta_store_f32(out, 1.f);
  } else if (mistake == 8) {  // what another thread wrote, without a barrier
    ta_store_f32(out + block * 64 + thread, 1.f);
    ta_load_f32(out + block * 64 + (thread + 32) % 64);
  } else if (mistake == 9) {  // what this launch writes, as read-only
    ta_store_f32(out + block * 64 + thread, 1.f);
    __syncthreads();
    ta_read_f32(out + block * 64 + thread);
  } else if (mistake == 10) {  // a copy that nobody waited for
    ta_copy16(shared + 4 * thread, in + thread / 16 * 4, 16);
    ta_copy_commit();
    ta_store_f32(out + block * 64 + thread, shared[4 * thread]);
  } else if (mistake == 11) {  // what nobody wrote
    ta_store_f32(out + block * 64 + thread, shared[thread]);
  } else if (mistake == 12) {  // a block that may have left
    if (block % 2 == 0) ta_store_f32(out + thread, ta_peer_read(shared + thread, 1));
  } else if (mistake == 13) {  // 16 bytes where only 4 are aligned
    ta_read16(in + 1);
  }
}
