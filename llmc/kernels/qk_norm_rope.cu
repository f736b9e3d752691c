// Biases, RMSNorm of queries and keys, and RoPE in one pass over qkv[N, (NH + 2 NKV) HD]; and its gradients.
// Deterministic: see qk_norm_rope.h.
//
// `lanes` threads share a head, a power of two up to 32, so a warp has whole heads. A thread has `width` pairs of
// elements that RoPE rotates together, and holds them in registers between their sum and their result.
//
// Expected limit on a GPU: device memory.
#include "llmc/kernels/qk_norm_rope.h"

#include <algorithm>
#include <climits>

#include "llmc/kernels/column_sums.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/rows.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;
constexpr int kRows = 128;  // rows per block of backward, whose sums it writes

// The norm of queries and keys; an int as a template's argument, so that tools can print a kernel's name.
enum Norm : int { kNoNorm, kHeadNorm, kWholeNorm };

template <class T>
struct Vectors {
  const T *q_bias, *k_bias, *v_bias, *q_norm, *k_norm;
};

// The parts of a launch that forward and backward share.
struct Rows {
  int N, NH, NKV, half;
  const float* table;
  const int* positions;
  int table_positions, ranks;

  __device__ __forceinline__ int width() const { return (NH + 2 * NKV) * 2 * half; }
  __device__ __forceinline__ bool rotates(int head) const { return head < NH + NKV; }
};

// A thread's elements of a head: pairs i .. i+width-1, which are elements i and half + i.
template <int width>
struct Pairs {
  float a[width] = {}, b[width] = {};

  template <class T>
  __device__ __forceinline__ void load(const T* head, int i, int half) {
    load_vector(a, head + i);
    load_vector(b, head + half + i);
  }
  // Returns the elements as they are rounded.
  template <class T>
  __device__ __forceinline__ Vector<T, 2 * width> store(T* head, int i, int half) const {
    const Vector<T, width> first = rounded<T>(a), second = rounded<T>(b);
    *reinterpret_cast<Vector<T, width>*>(head + i) = first;
    *reinterpret_cast<Vector<T, width>*>(head + half + i) = second;
    Vector<T, 2 * width> both;
#pragma unroll
    for (int j = 0; j < width; ++j) both.v[j] = first.v[j], both.v[width + j] = second.v[j];
    return both;
  }
  // Rotates by the angles of the row's position or, if `inverse`, by the negative angles.
  template <bool inverse>
  __device__ __forceinline__ void rotate(const Rows& rows, int row, int i) {
    const int position = rows.positions[row];
    const bool known = position >= 0 && position < rows.table_positions;
    const float nan_if_unknown = known ? 0.0f : NAN;
    float angles[2 * width];
    load_vector(angles, rows.table + (size_t(known ? position : 0) * rows.half + i) * 2);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      const float cosine = angles[2 * j] + nan_if_unknown, sine = angles[2 * j + 1] + nan_if_unknown;
      const RotatedPair pair = rotate_pair(a[j], b[j], cosine, inverse ? -sine : sine);
      a[j] = pair.a, b[j] = pair.b;
    }
  }
};

// Returns the sum over the `lanes` threads of a head, to each of them.
__device__ __forceinline__ float sum_over_lanes(float value, int lanes) {
  for (int apart = lanes / 2; apart; apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
  return value;
}

// Returns the head's part of a vector with HD numbers for each query, key or value head.
template <class T>
__device__ __forceinline__ const T* of_head(const Rows& rows, int head, const T* q, const T* k, const T* v) {
  const int HD = 2 * rows.half;
  if (head < rows.NH) return q + head * HD;
  return rows.rotates(head) ? k + (head - rows.NH) * HD : v + (head - rows.NH - rows.NKV) * HD;
}

template <class T, int norm>
__device__ __forceinline__ const T* norm_weight(const Rows& rows, int head, const Vectors<T>& p) {
  if (norm == kWholeNorm) return of_head<T>(rows, head, p.q_norm, p.k_norm, nullptr);
  return head < rows.NH ? p.q_norm : p.k_norm;
}

// The columns over which a mean of the whole norm goes.
__device__ __forceinline__ float whole_columns(const Rows& rows, bool key) {
  return float(key ? rows.NKV : rows.NH) * float(2 * rows.half) * float(rows.ranks);
}

// Returns the rstd of the norm to which this head belongs, x being the thread's part of it. All threads of a warp call,
// also those that have no part: then `active` is false.
template <int norm, int width>
__device__ __forceinline__ float rstd_of_head(const Pairs<width>& x, const float* squares, const Rows& rows, int row,
                                              int head, bool active, float eps) {
  if constexpr (norm == kHeadNorm) {
    float own[width];
#pragma unroll
    for (int j = 0; j < width; ++j) own[j] = x.a[j] * x.a[j] + x.b[j] * x.b[j];
    return rsqrt_f32(sum_over_lanes(total(own), blockDim.x) / float(2 * rows.half) + eps);
  }
  const bool key = head >= rows.NH;
  return active ? rsqrt_f32(squares[size_t(row) * 2 + key] / whole_columns(rows, key) + eps) : 0;
}

// A group of `lanes` threads has one head of one row. `heads` are touched: all, or those that RoPE rotates.
template <class T, int width, int norm>
__global__ void __launch_bounds__(kThreads)
    qk_norm_rope_forward_kernel(T* out, const T* qkv, Vectors<T> p, const float* __restrict__ squares, Rows rows,
                                int heads, float eps) {
  const int64_t item = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  const int row = int(item / heads), head = int(item % heads), i = threadIdx.x * width, HD = 2 * rows.half;
  const bool active = row < rows.N && i < rows.half, rotates = rows.rotates(head);
  const size_t at = size_t(row) * rows.width() + head * HD;
  Pairs<width> x;
  if (active) {
    x.load(qkv + at, i, rows.half);
    if (p.q_bias) {
      Pairs<width> bias;
      bias.load(of_head(rows, head, p.q_bias, p.k_bias, p.v_bias), i, rows.half);
#pragma unroll
      for (int j = 0; j < width; ++j) x.a[j] += bias.a[j], x.b[j] += bias.b[j];
    }
  }
  if constexpr (norm != kNoNorm) {
    const float r = rstd_of_head<norm>(x, squares, rows, row, head, active && rotates, eps);
    if (active && rotates) {
      Pairs<width> w;
      w.load(norm_weight<T, norm>(rows, head, p), i, rows.half);
#pragma unroll
      for (int j = 0; j < width; ++j) x.a[j] = rmsnormed(x.a[j], r, w.a[j]), x.b[j] = rmsnormed(x.b[j], r, w.b[j]);
    }
  }
  if (!active) return;
  if (rotates) x.template rotate<false>(rows, row, i);
  x.store(out + at, i, rows.half);
}

// A block has one head of kRows rows, blockDim.y at a time. A thread has the same elements of each row, so it adds up
// their gradients; part[head, blockIdx.x, HD] = the sums over the block's rows of the gradient of the bias or of the
// norm's weight.
template <class T, int width, int norm>
__global__ void __launch_bounds__(kThreads)
    qk_norm_rope_backward_kernel(T* __restrict__ dqkv, float* __restrict__ part, const T* __restrict__ qkv,
                                 Vectors<T> p, const float* __restrict__ squares, const float* __restrict__ dots,
                                 Rows rows, float eps, float* amax) {
  const int head = blockIdx.y, i = threadIdx.x * width, HD = 2 * rows.half;
  const bool rotates = rows.rotates(head), key = head >= rows.NH, normed = norm != kNoNorm && rotates;
  Pairs<width> w, sum;
  if (normed && i < rows.half) w.load(norm_weight<T, norm>(rows, head, p), i, rows.half);
  Vector<T, 2 * width> largest = {};
  for (int first = blockIdx.x * kRows; first < rows.N && first < (int(blockIdx.x) + 1) * kRows; first += blockDim.y) {
    const int row = first + threadIdx.y;
    const bool active = row < rows.N && i < rows.half;
    const size_t at = size_t(row) * rows.width() + head * HD;
    Pairs<width> g, x;
    if (active) {
      g.load(dqkv + at, i, rows.half);
      if (rotates) g.template rotate<true>(rows, row, i);
    }
    if (!normed) {
#pragma unroll
      for (int j = 0; j < width; ++j) sum.a[j] += g.a[j], sum.b[j] += g.b[j];
    } else {
      if (active) x.load(qkv + at, i, rows.half);
      const float r = rstd_of_head<norm>(x, squares, rows, row, head, active, eps);
      float own[width];
#pragma unroll
      for (int j = 0; j < width; ++j) {  // from here on x is normed, and g is the gradient of that
        x.a[j] *= r, x.b[j] *= r;
        sum.a[j] += g.a[j] * x.a[j], sum.b[j] += g.b[j] * x.b[j];
        g.a[j] *= w.a[j], g.b[j] *= w.b[j];
        own[j] = g.a[j] * x.a[j] + g.b[j] * x.b[j];
      }
      float mean = 0;
      if constexpr (norm == kHeadNorm) mean = sum_over_lanes(total(own), blockDim.x) / float(HD);
      else if (active) mean = dots[size_t(row) * 2 + key] / whole_columns(rows, key);
#pragma unroll
      for (int j = 0; j < width; ++j) g.a[j] = r * (g.a[j] - x.a[j] * mean), g.b[j] = r * (g.b[j] - x.b[j] * mean);
    }
    if (!active) continue;
    const Vector<T, 2 * width> numbers = g.store(dqkv + at, i, rows.half);
    if (std::is_same_v<T, bf16> && amax) max_abs_into(largest, numbers);
  }
  if (std::is_same_v<T, bf16> && amax) raise_amax(amax, max_value(largest));
  if (norm != kNoNorm && !rotates) return;  // all threads of the block
  // Adds the sums of the block's rows in their order.
  float* all = reinterpret_cast<float*>(&shared_memory<float>());
  if (i < rows.half) sum.store(all + threadIdx.y * HD, i, rows.half);
  __syncthreads();
  for (int c = threadIdx.y * blockDim.x + threadIdx.x; c < HD; c += blockDim.x * blockDim.y) {
    float s = 0;
    for (int y = 0; y < int(blockDim.y); ++y) s += all[y * HD + c];
    part[(size_t(head) * gridDim.x + blockIdx.x) * HD + c] = s;
  }
}

// A warp has the queries (blockIdx.y = 0) or the keys of a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    qk_dots_kernel(float* __restrict__ sums, const T* __restrict__ a, const T* __restrict__ b, int N, int width,
                   int q_columns, int k_columns) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  const bool key = blockIdx.y;
  const size_t at = size_t(row) * width + (key ? q_columns : 0);
  float dots[8] = {};
  for (int c = threadIdx.x * 8; row < N && c < (key ? k_columns : q_columns); c += blockDim.x * 8) {
    float x[8], y[8];
    load_vector(x, a + at + c);
    load_vector(y, b + at + c);
#pragma unroll
    for (int j = 0; j < 8; ++j) dots[j] += x[j] * y[j];
  }
  const float sum = warp_sum(total(dots));
  if (row < N && threadIdx.x == 0) sums[size_t(row) * 2 + key] = sum;
}

// ---------------------------------------------------------------------------------------------- launchers

// A checked launch of either direction.
struct Call {
  Rows rows;
  Norm norm;
  bool biased;
  dim3 block;
};

void require_vector(const char* who, const char* name, const Tensor& t, DType type, int64_t size, bool wanted) {
  require_tensor(who, name, t, type, {size}, !wanted);
  REQUIRE(!t || wanted, "%s: %s is %s, and others like it are absent", who, name, t.text().c_str());
  REQUIRE(reinterpret_cast<uintptr_t>(t.data) % 16 == 0, "%s: %s is at %p: expected 16-byte alignment", who, name,
          t.data);
}

// Throws unless the vectors have the sizes of the call and are there if the call needs them.
void require_vectors(const char* who, const QkvVectors& v, DType type, const Call& call) {
  const int64_t HD = 2 * call.rows.half, q = call.rows.NH * HD, k = call.rows.NKV * HD;
  const bool normed = call.norm != kNoNorm, whole = call.norm == kWholeNorm;
  require_vector(who, "q_bias", v.q_bias, type, q, call.biased);
  require_vector(who, "k_bias", v.k_bias, type, k, call.biased);
  require_vector(who, "v_bias", v.v_bias, type, k, call.biased);
  require_vector(who, "q_norm", v.q_norm, type, whole ? q : HD, normed);
  require_vector(who, "k_norm", v.k_norm, type, whole ? k : HD, normed);
}

Call checked_call(const char* who, const Tensor& qkv, const QkvVectors& vectors, const RopeAngles& angles,
                  const WholeNorm& whole, float eps) {
  const Tensor &table = angles.table, &positions = angles.positions;
  require_tensor(who, "table", table, DType::fp32, {-1, -1, 2});
  require_rows(who, "qkv", qkv);
  const int64_t N = qkv.rows(), width = qkv.columns(), known = table.shape[1], half = table.shape[2], HD = 2 * half;
  REQUIRE(half >= 4 && half <= 128 && half % 4 == 0 && known >= 1 && known <= INT_MAX && width % HD == 0 &&
              angles.heads < width / HD && 2 * angles.heads > width / HD,
          "%s: qkv is %s, of which %d heads of %lld are queries and keys, with a table of %lld positions\n"
          "  expected (N, (NH + 2 NKV) HD), HD 8 to 256 in steps of 8, and at least one position",
          who, qkv.text().c_str(), angles.heads, (long long)HD, (long long)known);
  const int NKV = int(width / HD) - angles.heads, NH = angles.heads - NKV;
  require_tensor(who, "positions", positions, DType::int32, {N});
  Call call{{int(N), NH, NKV, int(half), table.as<float>(), positions.as<int>(), int(known), whole.ranks},
            !vectors.q_norm ? kNoNorm
            : whole.squares ? kWholeNorm
                            : kHeadNorm,
            bool(vectors.q_bias),
            {}};
  REQUIRE(call.norm != kNoNorm || call.biased, "%s: neither biases nor norms: rope.h does that", who);
  REQUIRE(call.norm == kNoNorm || !call.biased, "%s: biases and norms: expected one of them, as families have it", who);
  REQUIRE(call.norm == kNoNorm || (eps > 0 && eps < 1), "%s: eps = %g: expected a small positive number, such as 1e-5",
          who, double(eps));
  REQUIRE(whole.ranks >= 1, "%s: %d ranks share the heads, expected at least 1", who, whole.ranks);
  require_vectors(who, vectors, qkv.type, call);
  require_tensor(who, "squares", whole.squares, DType::fp32, {N, 2}, true);
  const int vectors_per_half = half % 8 == 0 ? int(half) / 8 : int(half) / 4;
  int lanes = 1;
  while (lanes < vectors_per_half) lanes *= 2;
  call.block = dim3(unsigned(lanes), unsigned(std::min(kThreads / lanes, kRows)));
  return call;
}

// Calls body(number, width, norm): a value of qkv's type, and two constants.
template <class Body>
void with_kernel(const char* who, DType type, const Call& call, std::initializer_list<const void*> buffers,
                 const Body& body) {
  for (const void* buffer : buffers)
    REQUIRE(reinterpret_cast<uintptr_t>(buffer) % 16 == 0, "%s: a buffer begins at %p: align it to 16 bytes", who,
            buffer);
  with_type(who, type, [&](auto number) {
    const auto with_norm = [&](auto width) {
      if (call.norm == kNoNorm) body(number, width, std::integral_constant<int, kNoNorm>{});
      else if (call.norm == kHeadNorm) body(number, width, std::integral_constant<int, kHeadNorm>{});
      else body(number, width, std::integral_constant<int, kWholeNorm>{});
    };
    if (call.rows.half % 8 == 0) with_norm(std::integral_constant<int, 8>{});
    else with_norm(std::integral_constant<int, 4>{});
  });
}

template <class T>
Vectors<T> pointers(const QkvVectors& v) {
  return {v.q_bias.as<T>(), v.k_bias.as<T>(), v.v_bias.as<T>(), v.q_norm.as<T>(), v.k_norm.as<T>()};
}

}  // namespace

void qk_norm_rope_forward(Stream& stream, const Tensor& out, const Tensor& qkv, const QkvVectors& v,
                          const RopeAngles& angles, float eps, const WholeNorm& whole) {
  const char* who = "qk_norm_rope_forward";
  const Call call = checked_call(who, qkv, v, angles, whole, eps);
  const Rows& rows = call.rows;
  require_tensor(who, "out", out, qkv.type, {qkv.rows(), qkv.columns()});
  if (out.data != qkv.data) require_apart(who, "out", out, "qkv", qkv);
  const Work work{stream,
                  who,
                  {writes(out), reads(qkv), reads(v.q_bias), reads(v.k_bias), reads(v.v_bias), reads(v.q_norm),
                   reads(v.k_norm), reads(whole.squares), reads(angles.table), reads(angles.positions)}};
  const bool all = call.biased || out.data != qkv.data;
  const int heads = rows.NH + rows.NKV + (all ? rows.NKV : 0);
  with_kernel(who, qkv.type, call, {out.data, qkv.data}, [&](auto number, auto width, auto norm) {
    using T = decltype(number);
    launch<qk_norm_rope_forward_kernel<T, decltype(width)::value, decltype(norm)::value>>(
        work, blocks_for(size_t(rows.N) * size_t(heads), call.block.y), call.block, 0, out.as<T>(), qkv.as<T>(),
        pointers<T>(v), whole.squares.as<float>(), rows, heads, eps);
  });
}

int64_t qk_norm_rope_scratch(int64_t N, int64_t columns) { return (N + kRows - 1) / kRows * columns; }

void qk_norm_rope_backward(Stream& stream, const Tensor& dqkv, const QkvVectors& gradients, const Tensor& scratch,
                           const Tensor& qkv, const QkvVectors& v, const RopeAngles& angles, float eps,
                           const WholeNorm& whole, float* amax) {
  const char* who = "qk_norm_rope_backward";
  const Call call = checked_call(who, dqkv, v, angles, whole, eps);
  const Rows& rows = call.rows;
  const bool normed = call.norm != kNoNorm;
  require_tensor(who, "qkv", qkv, dqkv.type, {dqkv.rows(), dqkv.columns()}, !normed);
  require_tensor(who, "dots", whole.dots, DType::fp32, {dqkv.rows(), 2}, call.norm != kWholeNorm);
  if (qkv) require_apart(who, "dqkv", dqkv, "qkv", qkv);
  require_vectors(who, gradients, DType::fp32, call);
  require_tensor(who, "scratch", scratch, DType::fp32, {-1});
  const int rotated = rows.NH + rows.NKV, all = rotated + rows.NKV, with_vectors = normed ? rotated : all;
  const int64_t chunks = blocks_for(size_t(rows.N), kRows), HD = 2 * rows.half;
  REQUIRE(scratch.size() >= with_vectors * chunks * HD, "%s: scratch is %s\n  expected (%lld) or more", who,
          scratch.text().c_str(), (long long)(with_vectors * chunks * HD));
  REQUIRE(!amax || dqkv.type == DType::bf16, "%s: the largest number of dqkv is found in bf16 alone", who);
  const Tensor part = scratch.first({with_vectors, chunks, HD});
  const Work work{stream,
                  who,
                  {updates(dqkv), writes(part), reads(qkv), reads(v.q_norm), reads(v.k_norm), reads(whole.squares),
                   reads(whole.dots), reads(angles.table), reads(angles.positions), updates(amax, 1)}};
  // With a norm, values stay as they are, but they count for the largest number.
  const dim3 grid(unsigned(chunks), unsigned(amax ? all : with_vectors));
  with_kernel(who, dqkv.type, call, {dqkv.data, qkv.data}, [&](auto number, auto width, auto norm) {
    using T = decltype(number);
    launch<qk_norm_rope_backward_kernel<T, decltype(width)::value, decltype(norm)::value>>(
        work, grid, call.block, call.block.y * size_t(HD) * sizeof(float), dqkv.as<T>(), part.as<float>(), qkv.as<T>(),
        pointers<T>(v), whole.squares.as<float>(), whole.dots.as<float>(), rows, eps, amax);
  });
  const auto add = [&](const Tensor& sum, int first, int count) {
    if (!sum) return;
    const Tensor own = part.slice(0, first, count);
    const bool of_all_heads = sum.size() == HD && !call.biased && call.norm == kHeadNorm;
    add_column_sums(stream, "qk_norm_rope_backward, vectors", sum,
                    of_all_heads ? own.first({1, count * chunks, HD}) : own);
  };
  add(call.biased ? gradients.q_bias : gradients.q_norm, 0, rows.NH);
  add(call.biased ? gradients.k_bias : gradients.k_norm, rows.NH, rows.NKV);
  add(gradients.v_bias, rotated, rows.NKV);
}

void qk_dots(Stream& stream, const Tensor& sums, const Tensor& a, const Tensor& b, int NH, int NKV) {
  const char* who = "qk_dots";
  require_rows(who, "a", a);
  const int64_t N = a.rows(), width = a.columns(), HD = NH + 2 * NKV > 0 ? width / (NH + 2 * NKV) : 0;
  REQUIRE(NH >= 1 && NKV >= 1 && HD % 8 == 0 && HD * (NH + 2 * NKV) == width,
          "%s: a is %s, with %d query and %d key heads\n  expected (N, (NH + 2 NKV) HD), HD a multiple of 8", who,
          a.text().c_str(), NH, NKV);
  require_tensor(who, "b", b, a.type, {N, width});
  require_tensor(who, "sums", sums, DType::fp32, {N, 2});
  const Work work{stream, who, {writes(sums), reads(a), reads(b)}};
  const dim3 block(32, kThreads / 32);
  with_type(who, a.type, [&](auto number) {
    using T = decltype(number);
    with_vector_width(who, 8, {a.data, b.data}, [&](auto) {
      launch<qk_dots_kernel<T>>(work, dim3(blocks_for(size_t(N), block.y), 2), block, 0, sums.as<float>(), a.as<T>(),
                                b.as<T>(), int(N), int(width), int(NH * HD), int(NKV * HD));
    });
  });
}
