// Tensor-core products of one warp (sm_80 and newer) and the loads that feed them.
//
//   mma_m16n8k16   D(16x8, fp32) += A(16x16, bf16, row-major) * B(16x8, bf16, column-major)
//   ldmatrix_x4    four 8x8 matrices of 16-bit elements from shared memory, optionally transposed
//   swizzled       the address of 8 columns of a row in a tile of shared memory
//
// Fragments are those of the PTX ISA. With g = lane / 4 and t = lane % 4:
//   a[0] = A[g][2t, 2t+1]   a[1] = A[g+8][2t, 2t+1]   a[2] = A[g][2t+8, 2t+9]   a[3] = A[g+8][2t+8, 2t+9]
//   b[0] = B[2t, 2t+1][g]   b[1] = B[2t+8, 2t+9][g]
//   d[0], d[1] = D[g][2t, 2t+1]   d[2], d[3] = D[g+8][2t, 2t+1]
// All 32 lanes must call.
#pragma once

#include "llmc/device/async_copy.cuh"
#include "llmc/device/kernel.cuh"

#if LLMC_CUDA

__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void ldmatrix_x4_of(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row));
}
__device__ __forceinline__ void ldmatrix_x4_transposed_of(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row));
}

#else

namespace cpu_backend {

struct Mma16x8x16 {
  float* d;
  const uint32_t *a, *b;

  static float half(uint32_t pair, int which) { return bits_to_float(which ? pair & 0xffff0000u : pair << 16); }

  static void run(uint64_t* lanes, uint32_t mask) {
    if (mask != ~0u) stop_kernel("mma_m16n8k16 needs all 32 lanes, has %08x", mask);
    float A[16][16], B[16][8];
    for (int l = 0; l < 32; ++l) {
      const auto* lane = from_posted<Mma16x8x16*>(lanes[l]);
      const int g = l / 4, t = l % 4 * 2;
      for (int h = 0; h < 2; ++h) {
        A[g][t + h] = half(lane->a[0], h);
        A[g + 8][t + h] = half(lane->a[1], h);
        A[g][t + 8 + h] = half(lane->a[2], h);
        A[g + 8][t + 8 + h] = half(lane->a[3], h);
        B[t + h][g] = half(lane->b[0], h);
        B[t + 8 + h][g] = half(lane->b[1], h);
      }
    }
    float D[16][8] = {};
    for (int i = 0; i < 16; ++i)
      for (int k = 0; k < 16; ++k)
        for (int j = 0; j < 8; ++j) D[i][j] += A[i][k] * B[k][j];
    for (int l = 0; l < 32; ++l) {
      float* d = from_posted<Mma16x8x16*>(lanes[l])->d;
      const int g = l / 4, t = l % 4 * 2;
      d[0] += D[g][t];
      d[1] += D[g][t + 1];
      d[2] += D[g + 8][t];
      d[3] += D[g + 8][t + 1];
    }
  }
};

struct Ldmatrix {
  uint32_t r[4];
  const void* row;
  bool transpose;

  static void run(uint64_t* lanes, uint32_t mask) {
    if (mask != ~0u) stop_kernel("ldmatrix needs all 32 lanes, has %08x", mask);
    for (int m = 0; m < 4; ++m)
      for (int l = 0; l < 32; ++l) {
        auto* lane = from_posted<Ldmatrix*>(lanes[l]);
        uint16_t pair[2];
        for (int h = 0; h < 2; ++h) {
          const int row = lane->transpose ? l % 4 * 2 + h : l / 4, column = lane->transpose ? l / 4 : l % 4 * 2 + h;
          const void* source = from_posted<Ldmatrix*>(lanes[m * 8 + row])->row;
          pair[h] = static_cast<const uint16_t*>(source)[column];
        }
        memcpy(&lane->r[m], pair, 4);
      }
  }
};

}  // namespace cpu_backend

inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], LLMC_PLACE) {
  cpu_backend::Mma16x8x16 me{d, a, b};
  cpu_backend::sync_warp(~0u, &cpu_backend::Mma16x8x16::run, cpu_backend::to_posted(&me), {"mma_m16n8k16", file, line});
}

#endif

// Returns two numbers rounded to a pair of bf16, the first in the low half.
__device__ __forceinline__ uint32_t pair_of_bf16(float first, float second) {
#if LLMC_CUDA
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
#else
  return uint32_t(from_float<bf16>(first).bits) | uint32_t(from_float<bf16>(second).bits) << 16;
#endif
}

// An address in shared memory: 4 bytes on a GPU.
#if LLMC_CUDA
using SharedAddress = uint32_t;
#else
using SharedAddress = uintptr_t;
#endif

// Lane l gives the address of row l % 8 of matrix l / 8: 16 bytes in shared memory, 16-byte aligned. r[m] receives this
// lane's part of matrix m: row lane / 4, columns 2 (lane % 4) and the next. With kTranspose it is the same part of the
// transposed matrix.
#if LLMC_CUDA
template <bool kTranspose>
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], SharedAddress row) {
  if constexpr (kTranspose) ldmatrix_x4_transposed_of(r, row);
  else ldmatrix_x4_of(r, row);
}
template <bool kTranspose>
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  ldmatrix_x4<kTranspose>(r, smem_address(row));
}
#else
template <bool kTranspose>
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, LLMC_PLACE) {
  if (reinterpret_cast<uintptr_t>(row) & 15)
    cpu_backend::stop_kernel("%s:%d: ldmatrix: the row's address %p is not 16-byte aligned", file, line, row);
  cpu_backend::Ldmatrix me{{}, row, kTranspose};
  cpu_backend::sync_warp(~0u, &cpu_backend::Ldmatrix::run, cpu_backend::to_posted(&me), {"ldmatrix", file, line});
  memcpy(r, me.r, sizeof r);
}
template <bool kTranspose>
inline void ldmatrix_x4(uint32_t (&r)[4], SharedAddress row, LLMC_PLACE) {
  ldmatrix_x4<kTranspose>(r, reinterpret_cast<const void*>(row), file, line);
}
#endif

// A tile in shared memory has rows of kColumns elements (64 or 128) and starts at a multiple of a row's bytes. The
// 16-byte chunks of a row are permuted by the row's number, so that the 8 rows that ldmatrix reads at once lie in
// different banks without padding. Writers and readers call `swizzled` for the address of the 8 elements `chunk`
// (columns 8 chunk …) of `row`. `further` moves an address `rows` (a multiple of 8) down and from chunk c to chunk
// c ^ chunks, in one or two instructions. So from chunk 0 or 1 it moves an even number of chunks to the right.
template <int kColumns>
__device__ __forceinline__ bf16* swizzled(bf16* tile, int row, int chunk) {
  static_assert(kColumns == 64 || kColumns == 128);
  return tile + row * kColumns + ((chunk ^ (row & 7)) << 3);
}
#if LLMC_CUDA
template <int kColumns>
__device__ __forceinline__ SharedAddress swizzled_address(bf16* tile, int row, int chunk) {
  return smem_address(tile) + uint32_t(row * kColumns * 2 + ((chunk ^ (row & 7)) << 4));
}
#else
template <int kColumns>
inline SharedAddress swizzled_address(bf16* tile, int row, int chunk, LLMC_PLACE) {
  if (reinterpret_cast<uintptr_t>(tile) % (kColumns * 2))
    cpu_backend::stop_kernel("%s:%d: a swizzled tile of rows of %d bytes lies at %p, no multiple of that", file, line,
                             kColumns * 2, static_cast<void*>(tile));
  return reinterpret_cast<SharedAddress>(swizzled<kColumns>(tile, row, chunk));
}
#endif
template <int kColumns>
__device__ __forceinline__ SharedAddress further(SharedAddress from, int rows, int chunks) {
  return (from ^ SharedAddress(chunks * 16)) + SharedAddress(rows * kColumns * 2);
}
