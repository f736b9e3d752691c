// Root-mean-square norm over the last axis.  y[N,C] = x * rstd * w;  rstd[N] = 1/sqrt(mean(x^2) + eps), fp32.
// forward: sum =, y =, rstd =.  backward: dx +=, dw +=.  Deterministic: see rmsnorm.h.
//
// At most one warp shares a row (1, 2, 4 ... 32 threads), because waiting is expensive in the CPU backend. Each thread
// adds up its own part of the row, then adds the parts of all of the row's threads, in their order, from shared memory.
// On a GPU rmsnorm_wide.cu processes long rows.
#include "llmc/kernels/rmsnorm.h"

#include <algorithm>

#include "llmc/kernels/column_sums.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/rmsnorm_wide.h"
#include "llmc/kernels/rows.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;

struct RowParts {
  float part[2][kThreads];
};

// Returns the sum over the blockDim.x threads of this row. `buffer` alternates between two calls of a thread: then no
// thread writes what another still reads, and one barrier per call is enough.
__device__ __forceinline__ float row_sum(float value, int buffer) {
  if (blockDim.x == 1) return value;
  float* parts = shared_memory<RowParts>().part[buffer] + threadIdx.y * blockDim.x;
  parts[threadIdx.x] = value;
  __syncwarp();
  float sum = 0;
  for (int i = 0; i < int(blockDim.x); ++i) sum += parts[i];
  return sum;
}

// kAddBefore: sum = x + b, and the norm is that of `sum`, which may be x. Else it is the norm of x, to which kAddAfter
// adds b.
template <class T, int width, int add>
__global__ void __launch_bounds__(kThreads)
    rmsnorm_forward_kernel(T* sum, T* __restrict__ y, float* __restrict__ rstd, const T* x, const T* __restrict__ b,
                           const T* __restrict__ w, int N, int C, float eps, float* amax) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  const int first = threadIdx.x * width, step = blockDim.x * width;
  const size_t offset = size_t(row) * C;
  float squares[width] = {};
  for (int c = first; row < N && c < C; c += step) {
    float v[width];
    load_vector(v, x + offset + c);
    if constexpr (add == kAddBefore) {
      float other[width];
      load_vector(other, b + offset + c);
#pragma unroll
      for (int j = 0; j < width; ++j) v[j] = to_float(from_float<T>(v[j] + other[j]));
      store_vector(sum + offset + c, v);
    }
#pragma unroll
    for (int j = 0; j < width; ++j) squares[j] += v[j] * v[j];
  }
  const float r = rsqrt_f32(row_sum(total(squares), 0) / float(C) + eps);
  if (row >= N) return;
  if (threadIdx.x == 0) rstd[row] = r;
  if (!y && !amax) return;
  const T* normed = add == kAddBefore ? sum : x;
  Vector<T, width> largest = {};
  for (int c = first; c < C; c += step) {
    float v[width], scale[width];
    load_vector(v, normed + offset + c);
    load_vector(scale, w + c);
#pragma unroll
    for (int j = 0; j < width; ++j) v[j] = rmsnormed(v[j], r, scale[j]);
    if constexpr (add == kAddAfter) {
      float other[width];
      load_vector(other, b + offset + c);
#pragma unroll
      for (int j = 0; j < width; ++j) v[j] += other[j];
    }
    const Vector<T, width> numbers = rounded<T>(v);
    if (amax) max_abs_into(largest, numbers);
    if (y) *reinterpret_cast<Vector<T, width>*>(y + offset + c) = numbers;
  }
  if (amax) atomic_max(reinterpret_cast<uint32_t*>(amax), max_value(largest));
}

// True for bf16, the only type that is quantized; finding the amax costs registers.
template <class T>
constexpr bool kTakesAmax = std::is_same_v<T, bf16>;

// A block processes `rows` rows, blockDim.y at a time: first dx, then their share of dw, while dy and x are in cache.
// dx += rstd * (dy * w - x * rstd^2 * mean(dy * w * x)), or = unless `add`; part[block, C] = sum of dy * x * rstd over
// the block's rows.
template <class T, int width>
__global__ void __launch_bounds__(kThreads)
    rmsnorm_backward_kernel(T* __restrict__ dx, float* __restrict__ part, const T* __restrict__ dy,
                            const T* __restrict__ x, const T* __restrict__ w, const float* __restrict__ rstd, int N,
                            int C, int rows, bool add, float* amax) {
  const int lane = threadIdx.x, lanes = blockDim.x, together = blockDim.y;
  for (int pass = 0; pass * together < rows; ++pass) {
    const int first = blockIdx.x * rows + pass * together, row = first + threadIdx.y;
    const size_t offset = size_t(row) * C;
    float dots[width] = {};
    for (int c = lane * width; row < N && c < C; c += lanes * width) {
      float g[width], v[width], scale[width];
      load_vector(g, dy + offset + c);
      load_vector(v, x + offset + c);
      load_vector(scale, w + c);
#pragma unroll
      for (int j = 0; j < width; ++j) dots[j] += g[j] * scale[j] * v[j];
    }
    const float dot = row_sum(total(dots), pass % 2);
    const float r = row < N ? rstd[row] : 0, slope = dot / float(C) * r * r;
    Vector<T, width> largest = {};
    for (int c = lane * width; row < N && c < C; c += lanes * width) {
      float g[width], v[width], scale[width], d[width] = {};
      load_vector(g, dy + offset + c);
      load_vector(v, x + offset + c);
      load_vector(scale, w + c);
      if (add) load_vector(d, dx + offset + c);
#pragma unroll
      for (int j = 0; j < width; ++j) d[j] += r * (g[j] * scale[j] - v[j] * slope);
      const Vector<T, width> numbers = rounded<T>(d);
      if constexpr (kTakesAmax<T>) max_abs_into(largest, numbers);
      *reinterpret_cast<Vector<T, width>*>(dx + offset + c) = numbers;
    }
    if constexpr (kTakesAmax<T>)
      if (amax) atomic_max(reinterpret_cast<uint32_t*>(amax), max_value(largest));
    // Here a thread owns columns, not rows. No barrier is needed, since dy, x and rstd are only read.
    const int last = N < first + together ? N : first + together;
    for (int c = (threadIdx.y * lanes + lane) * width; c < C; c += lanes * together * width) {
      float* sums = part + size_t(blockIdx.x) * C + c;
      float s[width] = {};
      if (pass) load_vector(s, sums);
      for (int n = first; n < last; ++n) {
        float g[width], v[width];
        load_vector(g, dy + size_t(n) * C + c);
        load_vector(v, x + size_t(n) * C + c);
        const float rn = rstd[n];
#pragma unroll
        for (int j = 0; j < width; ++j) s[j] += g[j] * v[j] * rn;
      }
      store_vector(sums, s);
    }
  }
}

// ---------------------------------------------------------------------------------------------- launchers

int threads_per_row(int C) { return threads_for_row(C / vector_width(C), 16, 32); }

// Returns the rows that one block of the backward kernel adds up for dw: 64 if rows are short, else 16, so that a GPU
// does not lack blocks.
int rows_per_block(int C) { return C <= 512 ? 64 : 16; }
int blocks_of_rows(int N, int C) { return int(blocks_for(size_t(N), size_t(rows_per_block(C)))); }

// `b` is absent if nothing is added; `sum` is there if it is added before the norm.
void forward(Stream& stream, const char* who, RmsnormAdd add, const Tensor& sum, const Tensor& y, const Tensor& rstd,
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
  const int lanes = threads_per_row(C), together = kThreads / lanes;
  with_type(who, x.type, [&](auto number) {
    using T = decltype(number);
    with_vector_width(who, C, {sum.data, y.data, x.data, b.data, w.data}, [&](auto width) {
      if (takes_rmsnorm_wide(stream.device().info(), C))
        return rmsnorm_wide_forward(work, add, sum, y, rstd, x, b, w, eps, amax);
      with_rmsnorm_add(add, [&](auto adds) {
        launch<rmsnorm_forward_kernel<T, decltype(width)::value, decltype(adds)::value>>(
            work, blocks_for(size_t(N), size_t(together)), dim3(lanes, together), sizeof(RowParts::part[0]),
            sum.as<T>(), y.as<T>(), rstd.as<float>(), x.as<T>(), b.as<T>(), w.as<T>(), N, C, eps, amax);
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
  return int64_t(blocks_of_rows(N, C)) * C;
}

void rmsnorm_backward(Stream& stream, const Tensor& dx, const Tensor& dw, const Tensor& scratch, const Tensor& dy,
                      const Tensor& x, const Tensor& w, const Tensor& rstd, float* amax, bool add) {
  const char* who = "rmsnorm_backward";
  require_rows(who, "x", x);
  const int N = int(x.rows()), C = int(x.columns());
  const int rows = rows_per_block(C), parts = blocks_of_rows(N, C);
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
  const int lanes = threads_per_row(C), together = std::min(rows, kThreads / lanes);
  with_type(who, x.type, [&](auto number) {
    using T = decltype(number);
    with_vector_width(who, C, {dx.data, dw.data, part.data, dy.data, x.data, w.data}, [&](auto width_constant) {
      constexpr int width = decltype(width_constant)::value;
      if (takes_rmsnorm_wide(stream.device().info(), C))
        rmsnorm_wide_backward(work, dx, part, dy, x, w, rstd, rows, add, amax);
      else
        launch<rmsnorm_backward_kernel<T, width>>(work, unsigned(parts), dim3(lanes, together), sizeof(RowParts),
                                                  dx.as<T>(), part.as<float>(), dy.as<T>(), x.as<T>(), w.as<T>(),
                                                  rstd.as<float>(), N, C, rows, add, amax);
    });
  });
  add_column_sums(stream, "rmsnorm_backward, dw", dw, part.first({1, parts, C}));
}
