// Products of a warpgroup on Hopper's tensor cores: wgmma. A warpgroup is four warps, and the number of the first one
// is a multiple of four.
//
//   wgmma<N>(d, a, b)   D(64xN, fp32) += A(64x16, bf16) * B(16xN, bf16);  N is 64 or 128
//
// B lies in shared memory; A lies in shared memory or in registers. Descriptors give the place in shared memory
// (matrix_descriptor.h). Products run asynchronously while the threads go on, in order, in groups:
//
//   wgmma_fence();           the registers of d and a have been written; from here on they belong to the products
//   wgmma<N>(…);             a batch of products
//   wgmma_commit_group();    makes the batch a group
//   wgmma_wait_group<n>();   at most the n newest groups are under way; the thread may use the others' registers again
//
// Fragments: w is the number of the warp in the warpgroup, g = lane / 4 and t = lane % 4. Each thread holds these
// elements of columns 8j … 8j+7:
//   d[4j], d[4j+1] = D[16w+g][8j+2t], [8j+2t+1]     d[4j+2], d[4j+3] = D[16w+g+8][8j+2t], [8j+2t+1]
// For A, a lane holds the same pairs of bf16 as for mma_m16n8k16 of rows 16w … 16w+15. All 128 threads must call.
#pragma once

#include "llmc/device/matrix_descriptor.h"
#include "llmc/device/sm90_asm.cuh"

#if LLMC_CUDA

__device__ __forceinline__ void wgmma_fence() { SM90_ASM("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit_group() { SM90_ASM("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kUnderWay>
__device__ __forceinline__ void wgmma_wait_group() {
  SM90_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(kUnderWay) : "memory");
}
// Keeps the compiler from moving these registers across wgmma_fence and wgmma_wait_group, whose effect on them it does
// not know.
template <class T, int kCount>
__device__ __forceinline__ void warpgroup_fence_operand(T (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (std::is_same_v<T, float>) asm volatile("" : "+f"(x[i])::"memory");
    else asm volatile("" : "+r"(x[i])::"memory");
  }
}

// Makes sure that everything `sum` depends on is computed before a later wgmma_wait_group. ptxas moves a wait above
// arithmetic that does not need its products, and then this arithmetic does not run at the same time as
// them; but it leaves barriers in their order. `sum` is a sum of exponentials. It is never negative, so no thread
// arrives at the barrier.
__device__ __forceinline__ void compute_before_wait(float sum) {
  constexpr int kUnusedBarrier = 15;
  if (sum < 0) asm volatile("bar.arrive %0, 128;" ::"n"(kUnusedBarrier) : "memory");
}

// clang-format off
#define WGMMA_REGISTERS_64(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define WGMMA_LIST_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_REGISTERS_128(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
  "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
  "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
  "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define WGMMA_LIST_128 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// SS: both operands are in shared memory. RS: the left one is in registers. The N/2 accumulators are the first operands
// of the instruction; the numbers of the others follow.
#define WGMMA_SS(n, a_place, b_place, accumulate_place, a_major_place, b_major_place)                                      \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate_place ", 0;\n"                                                           \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" WGMMA_LIST_##n "}, " a_place ", " b_place ", p, 1, 1, "       \
  a_major_place ", " b_major_place ";\n}"
#define WGMMA_RS(n, a_places, b_place, accumulate_place, b_major_place)                                                     \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate_place ", 0;\n"                                                           \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" WGMMA_LIST_##n "}, {" a_places "}, " b_place ", p, 1, 1, "    \
  b_major_place ";\n}"
// clang-format on

// accumulate = false: D = A * B.
template <int kN, Major kMajorA = Major::k, Major kMajorB = Major::k>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(kN == 64 || kN == 128);
  if constexpr (kN == 64)
    SM90_ASM(WGMMA_SS(64, "%32", "%33", "%34", "%35", "%36")
             : WGMMA_REGISTERS_64(d)
             : "l"(a), "l"(b), "r"(int(accumulate)), "n"(int(kMajorA)), "n"(int(kMajorB)));
  else
    SM90_ASM(WGMMA_SS(128, "%64", "%65", "%66", "%67", "%68")
             : WGMMA_REGISTERS_128(d)
             : "l"(a), "l"(b), "r"(int(accumulate)), "n"(int(kMajorA)), "n"(int(kMajorB)));
}
template <int kN, Major kMajorB = Major::k>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  static_assert(kN == 64 || kN == 128);
  if constexpr (kN == 64)
    SM90_ASM(WGMMA_RS(64, "%32, %33, %34, %35", "%36", "%37", "%38")
             : WGMMA_REGISTERS_64(d)
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)), "n"(int(kMajorB)));
  else
    SM90_ASM(WGMMA_RS(128, "%64, %65, %66, %67", "%68", "%69", "%70")
             : WGMMA_REGISTERS_128(d)
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)), "n"(int(kMajorB)));
}

#else

inline void wgmma_fence(LLMC_PLACE) { cpu_backend::wgmma_fence({"wgmma_fence", file, line}); }
inline void wgmma_commit_group(LLMC_PLACE) { cpu_backend::wgmma_commit_group({"wgmma_commit_group", file, line}); }
template <int kUnderWay>
inline void wgmma_wait_group(LLMC_PLACE) {
  cpu_backend::wgmma_wait_group(kUnderWay, {"wgmma_wait_group", file, line});
}
template <class T, int kCount>
inline void warpgroup_fence_operand(T (&)[kCount]) {}
inline void compute_before_wait(float) {}

template <int kN, Major kMajorA = Major::k, Major kMajorB = Major::k>
inline void wgmma(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate, LLMC_PLACE) {
  cpu_backend::multiply({d, kN, nullptr, a, b, kMajorA, kMajorB, accumulate}, {"wgmma", file, line});
}
template <int kN, Major kMajorB = Major::k>
inline void wgmma(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate, LLMC_PLACE) {
  cpu_backend::multiply({d, kN, a, 0, b, Major::k, kMajorB, accumulate}, {"wgmma", file, line});
}

#endif

// A tile of kRows rows of kColumns bf16 in shared memory, as TMA boxes of 64 columns leave it: panels of 64 columns,
// one after another. Each panel has kRows lines of 128 bytes, with the 128-byte swizzle. kRows is a multiple of 8.
template <int kRows, int kColumns>
struct alignas(1024) WgmmaTile {
  static constexpr int kPanels = kColumns / 64, kPanelBytes = kRows * 128;
  static_assert(kColumns % 64 == 0 && kRows % 8 == 0);
  bf16 panel[kPanels][kRows][64];

  // Returns the descriptor of an operand that is summed over its columns (k-major): rows row0 … (a multiple of 8),
  // columns k … k+15 (a multiple of 16).
  __device__ __forceinline__ uint64_t k_major(int row0, int k) const {
    return k_major_at(smem_address(panel), row0, k);
  }
  // Returns the descriptor of an operand that is summed over its rows (mn-major): rows k … k+15 (a multiple of 16), all
  // columns.
  __device__ __forceinline__ uint64_t mn_major(int k) const { return mn_major_at(smem_address(panel), k); }

  // The same for a tile at `address` in shared memory.
  static HOST_DEVICE constexpr uint64_t k_major_at(uint32_t address, int row0, int k) {
    return matrix_descriptor(address, 16, 1024, Swizzle::bytes128) +
           uint64_t((k / 64 * kPanelBytes + row0 * 128 + k % 64 * 2) >> 4);
  }
  static HOST_DEVICE constexpr uint64_t mn_major_at(uint32_t address, int k) {
    return matrix_descriptor(address, kPanels > 1 ? kPanelBytes : 0, 1024, Swizzle::bytes128) + uint64_t(k * 128 >> 4);
  }
};
