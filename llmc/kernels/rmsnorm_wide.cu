// Root-mean-square norm over rows that a whole block shares.  y[N,C] = x * rstd * w.
// forward: sum =, y =, rstd =.  backward: dx += or =, shares of dw =.  Deterministic: see rmsnorm.h.
//
// Expected limit: device memory. Forward moves 2 rows of T (4 with the addition), backward 4 (dy, x, dx read, dx
// written; 3 without the addition), and w and a share of dw once per block. A block of 256 threads has all loads of a
// row in flight before the first is used: at C = 2048 in bf16 8 KiB in forward with the addition, 12 KiB in backward.
// An H100 holds 6 and 4 of these blocks per multiprocessor. They have the 40 KiB or more in flight that a latency of
// about 700 ns needs at 4.3 TB/s over 132 multiprocessors. The loads of other blocks hide the two barriers of a row's
// sum.
#include "llmc/kernels/rmsnorm_wide.h"

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/rows.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kMostThreads = 512, kMostVectors = 2;

// A thread's part of a row: vectors threadIdx.x, threadIdx.x + blockDim.x, … of 8 elements, as they lie in memory.
template <class T, int kVectors>
struct Part {
  Vector<T, 8> vector[kVectors];

  __device__ __forceinline__ void load(const T* row, int vectors) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = threadIdx.x + i * blockDim.x;
      vector[i] = at < vectors ? reinterpret_cast<const Vector<T, 8>*>(row)[at] : Vector<T, 8>{};
    }
  }
  __device__ __forceinline__ void store(T* row, int vectors) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = threadIdx.x + i * blockDim.x;
      if (at < vectors) reinterpret_cast<Vector<T, 8>*>(row)[at] = vector[i];
    }
  }
  __device__ __forceinline__ float get(int i, int j) const { return to_float(vector[i].v[j]); }
  __device__ __forceinline__ void set(int i, int j, float x) { vector[i].v[j] = from_float<T>(x); }
};

// Raises *amax to the largest of all threads' values.
template <class T>
__device__ __forceinline__ void raise_by_warps(float* amax, const Vector<T, 8>& largest) {
  const uint32_t of_warp = warp_max(max_value(largest));
  if (threadIdx.x % 32 == 0) atomic_max(reinterpret_cast<uint32_t*>(amax), of_warp);
}

template <class T, int kVectors, int add>
__global__ void __launch_bounds__(kMostThreads)
    rmsnorm_wide_forward_kernel(T* sum, T* __restrict__ y, float* __restrict__ rstd, const T* x,
                                const T* __restrict__ b, const T* __restrict__ w, int C, float eps, float* amax) {
  const size_t offset = size_t(blockIdx.x) * C;
  const int vectors = C / 8;
  Part<T, kVectors> row, other, scale;
  row.load(x + offset, vectors);
  if constexpr (add != kAddNothing) other.load(b + offset, vectors);
  scale.load(w, vectors);
  float squares[8] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if constexpr (add == kAddBefore) row.set(i, j, row.get(i, j) + other.get(i, j));
      squares[j] += row.get(i, j) * row.get(i, j);
    }
  if constexpr (add == kAddBefore) row.store(sum + offset, vectors);
  const float r = rsqrt_f32(block_sum(total(squares)) / float(C) + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float normed = rmsnormed(row.get(i, j), r, scale.get(i, j));
      if constexpr (add == kAddAfter) normed += other.get(i, j);
      row.set(i, j, normed);
    }
  if (y) row.store(y + offset, vectors);
  if (!amax) return;
  Vector<T, 8> largest = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) max_abs_into(largest, row.vector[i]);
  raise_by_warps(amax, largest);
}

// A block processes `rows` rows, one after another. A thread has the same columns of each row and keeps their sums for
// dw.
// dx += rstd * (dy * w - x * rstd^2 * mean(dy * w * x)), or = unless `add`; share[block, C] = sum of dy * x * rstd over
// the block's rows.
template <class T, int kVectors>
__global__ void __launch_bounds__(kMostThreads)
    rmsnorm_wide_backward_kernel(T* __restrict__ dx, float* __restrict__ share, const T* __restrict__ dy,
                                 const T* __restrict__ x, const T* __restrict__ w, const float* __restrict__ rstd,
                                 int N, int C, int rows, bool add, float* amax) {
  const int vectors = C / 8, first = blockIdx.x * rows, last = N < first + rows ? N : first + rows;
  Part<T, kVectors> scale;
  scale.load(w, vectors);
  float dw[kVectors][8] = {};
  Vector<T, 8> largest = {};
  for (int n = first; n < last; ++n) {
    const size_t offset = size_t(n) * C;
    Part<T, kVectors> g, v, d;
    g.load(dy + offset, vectors);
    v.load(x + offset, vectors);
    d.load(dx + offset, add ? vectors : 0);
    const float r = rstd[n];
    float dots[8] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        dots[j] += g.get(i, j) * scale.get(i, j) * v.get(i, j);
        dw[i][j] += g.get(i, j) * v.get(i, j) * r;
      }
    const float slope = block_sum(total(dots)) / float(C) * r * r;
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) d.set(i, j, d.get(i, j) + r * (g.get(i, j) * scale.get(i, j) - v.get(i, j) * slope));
    d.store(dx + offset, vectors);
    if (amax)
#pragma unroll
      for (int i = 0; i < kVectors; ++i) max_abs_into(largest, d.vector[i]);
  }
  float* to = share + size_t(blockIdx.x) * C;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at < vectors) store_vector(to + at * 8, dw[i]);
  }
  if (amax) raise_by_warps(amax, largest);
}

// ---------------------------------------------------------------------------------------------- launchers

// Calls `body` with the vectors per thread as a constant (the fewest for which kMostThreads threads suffice), and the
// number of threads.
template <class Body>
void with_parts(int C, const Body& body) {
  const int vectors = C / 8;
  const auto threads = [&](int each) { return unsigned((vectors + each - 1) / each + 31) / 32 * 32; };
  if (vectors <= kMostThreads) body(std::integral_constant<int, 1>{}, threads(1));
  else body(std::integral_constant<int, kMostVectors>{}, threads(kMostVectors));
}

}  // namespace

bool takes_rmsnorm_wide(const DeviceInfo& device, int C) {
  return device.wide_rows && C % 8 == 0 && C >= 1024 && C <= 8 * kMostThreads * kMostVectors;
}

void rmsnorm_wide_forward(const Work& work, RmsnormAdd add, const Tensor& sum, const Tensor& y, const Tensor& rstd,
                          const Tensor& x, const Tensor& b, const Tensor& w, float eps, float* amax) {
  const int N = int(x.rows()), C = int(x.columns());
  with_type(work.name, x.type, [&](auto number) {
    using T = decltype(number);
    with_parts(C, [&](auto vectors, unsigned threads) {
      with_rmsnorm_add(add, [&](auto adds) {
        launch<rmsnorm_wide_forward_kernel<T, decltype(vectors)::value, decltype(adds)::value>>(
            work, unsigned(N), threads, 0, sum.as<T>(), y.as<T>(), rstd.as<float>(), x.as<T>(), b.as<T>(), w.as<T>(), C,
            eps, amax);
      });
    });
  });
}

void rmsnorm_wide_backward(const Work& work, const Tensor& dx, const Tensor& part, const Tensor& dy, const Tensor& x,
                           const Tensor& w, const Tensor& rstd, int rows, bool add, float* amax) {
  const int N = int(x.rows()), C = int(x.columns());
  with_type(work.name, x.type, [&](auto number) {
    using T = decltype(number);
    with_parts(C, [&](auto vectors, unsigned threads) {
      launch<rmsnorm_wide_backward_kernel<T, decltype(vectors)::value>>(
          work, unsigned(part.rows()), threads, 0, dx.as<T>(), part.as<float>(), dy.as<T>(), x.as<T>(), w.as<T>(),
          rstd.as<float>(), N, C, rows, add, amax);
    });
  });
}
