// Root-mean-square norm over the last axis. y[N,C] = x * rstd * w; rstd[N] = 1/sqrt(mean(x^2) + eps), fp32.
// forward: sum =, y =, rstd =. backward: dx = or +=, dw +=. Deterministic: see rmsnorm.h.
//
// The threads of a block share a row, and the block processes some rows, one after another. On a GPU a thread has one
// or two vectors of 8 elements of a row. All loads that a row's sum needs are in flight before the first is used, and
// every input stays in registers until the sum is known. Rows of more than 8192 elements, or of a number that 8 does
// not divide, stay in memory and are read again. On a CPU, where threads that wait for each other cost more, one thread
// has the whole row, which stays in memory.
//
// Expected limit on a GPU: device memory. The loads of other blocks hide the two barriers of a row's sum.
#include "llmc/kernels/rmsnorm.h"

#include <algorithm>

#include "llmc/kernels/column_sums.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/rows.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kMostThreads = 512;

// A forward kernel normalizes x. kAddBefore: it adds b to x first (add_rmsnorm_forward: x is its a, b its b).
// kAddAfter: it adds b to the norm of x (rmsnorm_add_forward: x is its b, b its a). This is an int as a template's
// argument, so that tools can print a kernel's name.
enum Addition : int { kAddNothing, kAddBefore, kAddAfter };

// A thread's vectors of a row: threadIdx.x, threadIdx.x + blockDim.x, … of `width` elements. T may be const.
template <class T, int width>
struct RowVectors {
  using Packed = Vector<std::remove_const_t<T>, width>;
  T* row;
  int vectors;  // of the whole row

  __device__ __forceinline__ RowVectors(T* row, int C) : row(row), vectors(C / width) {}
  static __device__ __forceinline__ int vector_index(int i) { return threadIdx.x + i * blockDim.x; }
  __device__ __forceinline__ T* at(int i) const { return row + size_t(vector_index(i)) * width; }
};

// Keeps a thread's kVectors vectors of a row in registers between load() and store(). Beyond the row they are zeros.
template <class T, int width, int kVectors>
struct RowPart : RowVectors<T, width> {
  using Base = RowVectors<T, width>;
  using typename Base::Packed;
  Packed kept[kVectors];

  using Base::Base;
  __device__ __forceinline__ bool has(int i) const { return i < kVectors; }
  // Without `there` the row is not read, and all elements are zeros.
  __device__ __forceinline__ void load(bool there = true) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      kept[i] =
          there && this->vector_index(i) < this->vectors ? *reinterpret_cast<const Packed*>(this->at(i)) : Packed{};
  }
  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (this->vector_index(i) < this->vectors) *reinterpret_cast<Packed*>(this->at(i)) = kept[i];
  }
  __device__ __forceinline__ void get(float (&x)[width], int i) const { load_vector(x, kept[i].v); }
  __device__ __forceinline__ void set(int i, const Packed& x) { kept[i] = x; }
};

// With kInMemory a thread has any number of vectors, which stay in memory.
constexpr int kInMemory = 0;
template <class T, int width>
struct RowPart<T, width, kInMemory> : RowVectors<T, width> {
  using Base = RowVectors<T, width>;
  using typename Base::Packed;

  using Base::Base;
  __device__ __forceinline__ bool has(int i) const { return this->vector_index(i) < this->vectors; }
  __device__ __forceinline__ void load(bool = true) {}
  __device__ __forceinline__ void store() const {}
  __device__ __forceinline__ void get(float (&x)[width], int i) const { load_vector(x, this->at(i)); }
  __device__ __forceinline__ void set(int i, const Packed& x) { *reinterpret_cast<Packed*>(this->at(i)) = x; }
};

// A sum over a row. Where a thread has hundreds of vectors, it adds up 32 of them on their own, so that rounding errors
// hardly grow with the length of the row.
template <int width>
struct RowSum {
  float few[width] = {}, rest = 0;

  // Adds x, the i-th vector of this thread.
  __device__ __forceinline__ void add(int i, const float (&x)[width]) {
#pragma unroll
    for (int j = 0; j < width; ++j) few[j] += x[j];
    if (i % 32 != 31) return;
    rest += total(few);
#pragma unroll
    for (int j = 0; j < width; ++j) few[j] = 0;
  }
  // The sum over the block's threads: whole warps, or, if rows stay in memory, one thread alone.
  template <int kVectors>
  __device__ __forceinline__ float of_row() const {
    float sum = rest;
    sum += total(few);
    if (kVectors == kInMemory && blockDim.x == 1) return sum;
    return block_sum(sum);
  }
};

// Raises *amax to the largest of all threads' values.
template <class T, int width>
__device__ __forceinline__ void raise(float* amax, const Vector<T, width>& largest) {
  uint32_t bits = max_value(largest);
  if (blockDim.x > 1) bits = warp_max(bits);
  if (threadIdx.x % 32 == 0) raise_amax(amax, bits);
}

// kAddBefore: sum = x + b, and the norm is that of `sum`, which may be x. Else it is the norm of x, to which kAddAfter
// adds b.
template <class T, int width, int kVectors, int add>
__global__ void __launch_bounds__(kMostThreads)
    rmsnorm_forward_kernel(T* sum, T* __restrict__ y, float* __restrict__ rstd, const T* x, const T* __restrict__ b,
                           const T* __restrict__ w, int N, int C, int rows, float eps, float* amax) {
  RowPart<const T, width, kVectors> weight(w, C);
  weight.load();
  Vector<T, width> largest = {};
  const int first = blockIdx.x * rows, last = N - first < rows ? N : first + rows;
  for (int n = first; n < last; ++n) {
    const size_t offset = size_t(n) * C;
    RowPart<const T, width, kVectors> in(x + offset, C), other(add == kAddNothing ? nullptr : b + offset, C);
    RowPart<T, width, kVectors> added(add == kAddBefore ? sum + offset : nullptr, C), out(y + offset, C);
    in.load();
    if constexpr (add != kAddNothing) other.load();
    RowSum<width> squares;
#pragma unroll
    for (int i = 0; in.has(i); ++i) {
      float v[width];
      in.get(v, i);
      if constexpr (add == kAddBefore) {
        float before[width];
        other.get(before, i);
#pragma unroll
        for (int j = 0; j < width; ++j) v[j] += before[j];
        added.set(i, rounded<T>(v));
        added.get(v, i);
      }
#pragma unroll
      for (int j = 0; j < width; ++j) v[j] *= v[j];
      squares.add(i, v);
    }
    if constexpr (add == kAddBefore) added.store();
    const float r = rsqrt_f32(squares.template of_row<kVectors>() / float(C) + eps);
    if (threadIdx.x == 0) rstd[n] = r;
    if (!y && !amax) continue;
#pragma unroll
    for (int i = 0; in.has(i); ++i) {
      float v[width], of_weight[width];
      if constexpr (add == kAddBefore) added.get(v, i);
      else in.get(v, i);
      weight.get(of_weight, i);
#pragma unroll
      for (int j = 0; j < width; ++j) v[j] = rmsnormed(v[j], r, of_weight[j]);
      if constexpr (add == kAddAfter) {
        float after[width];
        other.get(after, i);
#pragma unroll
        for (int j = 0; j < width; ++j) v[j] += after[j];
      }
      const Vector<T, width> numbers = rounded<T>(v);
      if (amax) max_abs_into(largest, numbers);
      if (y) out.set(i, numbers);
    }
    if (y) out.store();
  }
  if (amax) raise(amax, largest);
}

// True for bf16, the only type that is quantized; finding the amax costs registers.
template <class T>
constexpr bool kTakesAmax = std::is_same_v<T, bf16>;

// dx += rstd * (dy * w - x * rstd^2 * mean(dy * w * x)), or = unless `add`; share[block, C] = sum of dy * x * rstd over
// the block's rows. A thread has the same columns of each row and keeps their sums.
template <class T, int width, int kVectors>
__global__ void __launch_bounds__(kMostThreads)
    rmsnorm_backward_kernel(T* __restrict__ dx, float* __restrict__ share, const T* __restrict__ dy,
                            const T* __restrict__ x, const T* __restrict__ w, const float* __restrict__ rstd, int N,
                            int C, int rows, bool add, float* amax) {
  RowPart<const T, width, kVectors> weight(w, C);
  weight.load();
  RowPart<float, width, kVectors> dw(share + size_t(blockIdx.x) * C, C);
  dw.load(false);
  Vector<T, width> largest = {};
  const int first = blockIdx.x * rows, last = N - first < rows ? N : first + rows;
  for (int n = first; n < last; ++n) {
    const size_t offset = size_t(n) * C;
    RowPart<const T, width, kVectors> gradient(dy + offset, C), in(x + offset, C);
    RowPart<T, width, kVectors> out(dx + offset, C);
    gradient.load();
    in.load();
    out.load(add);
    const float r = rstd[n];
    RowSum<width> dots;
#pragma unroll
    for (int i = 0; in.has(i); ++i) {
      float g[width], v[width], of_weight[width], sums[width] = {};
      gradient.get(g, i);
      in.get(v, i);
      weight.get(of_weight, i);
      // In memory the first row sets the sums, because what was there is not defined.
      if (kVectors != kInMemory || n > first) dw.get(sums, i);
#pragma unroll
      for (int j = 0; j < width; ++j) sums[j] += g[j] * v[j] * r;
      dw.set(i, rounded<float>(sums));
#pragma unroll
      for (int j = 0; j < width; ++j) g[j] *= of_weight[j] * v[j];
      dots.add(i, g);
    }
    const float slope = dots.template of_row<kVectors>() / float(C) * r * r;
#pragma unroll
    for (int i = 0; in.has(i); ++i) {
      float g[width], v[width], of_weight[width], d[width] = {};
      gradient.get(g, i);
      in.get(v, i);
      weight.get(of_weight, i);
      if (add) out.get(d, i);
#pragma unroll
      for (int j = 0; j < width; ++j) d[j] += r * (g[j] * of_weight[j] - v[j] * slope);
      const Vector<T, width> numbers = rounded<T>(d);
      if constexpr (kTakesAmax<T>)
        if (amax) max_abs_into(largest, numbers);
      out.set(i, numbers);
    }
    out.store();
  }
  dw.store();
  if constexpr (kTakesAmax<T>)
    if (amax) raise(amax, largest);
}

// ---------------------------------------------------------------------------------------------- launchers

// Rows that a block processes. In backward they share one row of sums for dw; forward takes several only where one
// thread has a row, so that starting a block costs little.
constexpr int kRows = 16;
int blocks_of_rows(int N) { return int(blocks_for(size_t(N), kRows)); }

// Calls body(width, vectors, threads): the width of a vector and the vectors that a thread keeps in registers, as
// constants, and the threads of a block. A GPU's thread keeps the fewest vectors for which kMostThreads threads
// suffice.
template <class Body>
void with_shape(const Work& work, int C, std::initializer_list<const void*> buffers, const Body& body) {
  const bool wide_rows = work.stream.device().info().wide_rows;
  with_vector_width(work.name, C, buffers, [&](auto width) {
    const int vectors = C / width;
    const auto threads = [&](int each) {
      return wide_rows ? std::min(kMostThreads, ((vectors + each - 1) / each + 31) / 32 * 32) : 1;
    };
    if constexpr (width == 8) {
      if (wide_rows && vectors <= kMostThreads) return body(width, std::integral_constant<int, 1>{}, threads(1));
      if (wide_rows && vectors <= 2 * kMostThreads) return body(width, std::integral_constant<int, 2>{}, threads(2));
    }
    body(width, std::integral_constant<int, kInMemory>{}, threads(1));
  });
}

// Calls body(std::integral_constant<int, add>{}).
template <class Body>
void with_addition(Addition add, const Body& body) {
  if (add == kAddNothing) body(std::integral_constant<int, kAddNothing>{});
  else if (add == kAddBefore) body(std::integral_constant<int, kAddBefore>{});
  else body(std::integral_constant<int, kAddAfter>{});
}

// `b` is absent if nothing is added; `sum` is there if it is added before the norm.
void forward(Stream& stream, const char* who, Addition add, const Tensor& sum, const Tensor& y, const Tensor& rstd,
             const Tensor& x, const Tensor& b, const Tensor& w, float eps, float* amax) {
  const char* x_name = add == kAddBefore ? "a" : "x";
  require_rows(who, x_name, x);
  const int N = int(x.rows()), C = int(x.columns());
  require_tensor(who, "sum", sum, x.type, {N, C}, add != kAddBefore);
  require_tensor(who, "y", y, x.type, {N, C}, add != kAddAfter);
  require_tensor(who, "rstd", rstd, DType::fp32, {N});
  require_tensor(who, "b", b, x.type, {N, C}, add == kAddNothing);
  require_tensor(who, "w", w, x.type, {C});
  REQUIRE(eps > 0 && eps < 1, "%s: eps = %g: expected a small positive number, such as 1e-5", who, double(eps));
  require_apart(who, "y", y, x_name, x);
  require_apart(who, "y", y, "sum", sum);
  require_apart(who, "y", y, "b", b);
  require_apart(who, "sum", sum, "b", b);
  if (sum.data != x.data) require_apart(who, "sum", sum, x_name, x);
  const Work work{stream, who, {writes(y), writes(rstd), writes(sum), reads(x), reads(b), reads(w), updates(amax, 1)}};
  with_type(who, x.type, [&](auto number) {
    using T = decltype(number);
    with_shape(work, C, {sum.data, y.data, x.data, b.data, w.data}, [&](auto width, auto vectors, int threads) {
      const int rows = threads == 1 ? kRows : 1;
      with_addition(add, [&](auto adds) {
        launch<rmsnorm_forward_kernel<T, decltype(width)::value, decltype(vectors)::value, decltype(adds)::value>>(
            work, blocks_for(size_t(N), size_t(rows)), threads, 0, sum.as<T>(), y.as<T>(), rstd.as<float>(), x.as<T>(),
            b.as<T>(), w.as<T>(), N, C, rows, eps, amax);
      });
    });
  });
}

}  // namespace

void rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& w, float eps,
                     float* amax) {
  forward(stream, "rmsnorm_forward", kAddNothing, {}, y, rstd, x, {}, w, eps, amax);
}

void add_rmsnorm_forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& rstd, const Tensor& a,
                         const Tensor& b, const Tensor& w, float eps, float* amax) {
  forward(stream, "add_rmsnorm_forward", kAddBefore, sum, y, rstd, a, b, w, eps, amax);
}

void rmsnorm_add_forward(Stream& stream, const Tensor& sum, const Tensor& rstd, const Tensor& a, const Tensor& b,
                         const Tensor& w, float eps, float* amax) {
  forward(stream, "rmsnorm_add_forward", kAddAfter, {}, sum, rstd, b, a, w, eps, amax);
}

int64_t rmsnorm_backward_scratch(int N, int C) {
  REQUIRE(N >= 1 && C >= 1, "rmsnorm_backward_scratch: N = %d, C = %d: expected at least one row and one column", N, C);
  return int64_t(blocks_of_rows(N)) * C;
}

void rmsnorm_backward(Stream& stream, const Tensor& dx, const Tensor& dw, const Tensor& scratch, const Tensor& dy,
                      const Tensor& x, const Tensor& w, const Tensor& rstd, float* amax, bool add) {
  const char* who = "rmsnorm_backward";
  require_rows(who, "x", x);
  const int N = int(x.rows()), C = int(x.columns());
  const int parts = blocks_of_rows(N);
  require_tensor(who, "dx", dx, x.type, {N, C});
  require_tensor(who, "dw", dw, DType::fp32, {C});
  require_tensor(who, "scratch", scratch, DType::fp32, {-1});
  REQUIRE(scratch.size() >= int64_t(parts) * C, "%s: scratch is %s\n  expected (%lld) or more", who,
          scratch.text().c_str(), (long long)parts * C);
  require_tensor(who, "dy", dy, x.type, {N, C});
  require_tensor(who, "w", w, x.type, {C});
  require_tensor(who, "rstd", rstd, DType::fp32, {N});
  require_apart(who, "dx", dx, "dy", dy);
  require_apart(who, "dx", dx, "x", x);
  REQUIRE(!amax || x.type == DType::bf16, "%s: the largest number of dx is found in bf16 alone", who);
  const Tensor part = scratch.first({parts, C});
  const Work work{
      stream,
      who,
      {add ? updates(dx) : writes(dx), writes(part), reads(dy), reads(x), reads(w), reads(rstd), updates(amax, 1)}};
  with_type(who, x.type, [&](auto number) {
    using T = decltype(number);
    const std::initializer_list<const void*> buffers = {dx.data, dw.data, part.data, dy.data, x.data, w.data};
    with_shape(work, C, buffers, [&](auto width, auto vectors, int threads) {
      launch<rmsnorm_backward_kernel<T, decltype(width)::value, decltype(vectors)::value>>(
          work, unsigned(parts), threads, 0, dx.as<T>(), part.as<float>(), dy.as<T>(), x.as<T>(), w.as<T>(),
          rstd.as<float>(), N, C, kRows, add, amax);
    });
  });
  add_column_sums(stream, "rmsnorm_backward, dw", dw, part.first({1, parts, C}));
}
