// Fused softmax and cross-entropy; logits become dlogits in place (contract: classifier.h).
//
// One block processes a row: one warp, or 512 or 1024 threads if the row has 4096 columns or more. A thread processes
// vectors of 8 columns. It reads its vectors once for the running maximum and the sum of exponentials rescaled to it
// (Milakov & Gimelshein 2018). Backward reads them once more to turn them into gradients. A column belongs to one
// thread, which alone reads and writes it, so no barrier is needed between reading a row's logits and overwriting them.
//
// Expected limit on a GPU: device memory, if the second read hits the L2 cache. A long row does not fit into a
// multiprocessor's shared memory.
#include "llmc/kernels/classifier.h"

#include <cfloat>
#include <climits>

#include "llmc/base/error.h"
#include "llmc/device/launch.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kVectorSize = 8;      // columns that a thread processes at once
constexpr int kLongRow = 4096;      // a row of at least this many columns has more threads than a warp
constexpr int kThreadsOnCpu = 512;  // threads of such a block
constexpr int kThreadsOnGpu = 1024;
constexpr int kSumThreads = 256;

// Loads columns first .. first+7 of a row as fp32, one by one. Columns from V on must not be read; they count as
// -infinity.
template <class T>
__device__ __forceinline__ void load_columns(float (&x)[kVectorSize], const T* row, int first, int V) {
  for (int i = 0; i < kVectorSize; ++i) x[i] = first + i < V ? to_float(row[first + i]) : -INFINITY;
}

// Stores columns first .. first+7 of a row of ld columns.
template <class T>
__device__ __forceinline__ void store_columns(T* row, const float (&x)[kVectorSize], int first, int ld, bool aligned) {
  if (aligned && first + kVectorSize <= ld) {
    store_vector(row + first, x);
  } else {
    for (int i = 0; i < kVectorSize && first + i < ld; ++i) row[first + i] = from_float<T>(x[i]);
  }
}

__device__ __forceinline__ float max_of(const float (&x)[kVectorSize]) {
  float a[4];
  for (int i = 0; i < 4; ++i) a[i] = max_f32(x[i], x[i + 4]);
  for (int i = 0; i < 2; ++i) a[i] = max_f32(a[i], a[i + 2]);
  return max_f32(a[0], a[1]);
}

// Returns e^(x - max). The rounding of the exponent is a relative error of |x - max| * 2^-24 in the result, so it is
// large only where the result is small.
__device__ __forceinline__ float exp_minus_max(float x, float max) { return exp2_f32((x - max) * kLog2e); }

struct RowShared {
  float max[32], sum[32];  // one per warp
};

struct Softmax {
  float max, sum;
  __device__ float logsumexp() const { return max + logf(sum); }
};

// Returns the row's maximum and its sum of exp(x - maximum), in every thread. `mine` are those of this thread's
// columns.
template <int kThreads>
__device__ __forceinline__ Softmax combine(Softmax mine) {
  Softmax row;
  row.max = warp_max(mine.max);
  row.sum = warp_sum(mine.sum * exp_f32(mine.max - row.max));
  if constexpr (kThreads > 32) {
    RowShared& shared = shared_memory<RowShared>();
    if (threadIdx.x % 32 == 0) {
      shared.max[threadIdx.x / 32] = row.max;
      shared.sum[threadIdx.x / 32] = row.sum;
    }
    __syncthreads();
    const int w = int(threadIdx.x % 32);  // every warp combines all warps, one in each lane
    const Softmax part = w < kThreads / 32 ? Softmax{shared.max[w], shared.sum[w]} : Softmax{-FLT_MAX, 0};
    row.max = warp_max(part.max);
    row.sum = warp_sum(part.sum * exp_f32(part.max - row.max));
  }
  return row;
}

// Vectors of a row that a thread loads at once. Their loads are in flight together.
constexpr int vectors_at_once(int threads) { return threads > 32 ? 4 : 1; }

// Loads vectors u, u + kThreads, … of a row, whose first `full_vectors` vectors consist of 8 of the V columns each.
// From the `full_vectors`-th on they are -infinity. A branch around each load would keep them from being in flight
// together, so a thread reads its vector u again instead, and never one of another thread.
template <int kThreads, int kAtOnce, class T>
__device__ __forceinline__ void load_full_vectors(float (&x)[kAtOnce][kVectorSize], const T* row, int u,
                                                  int full_vectors) {
  Vector<T, kVectorSize> packed[kAtOnce];
#pragma unroll
  for (int a = 0; a < kAtOnce; ++a) {
    const int v = u + a * kThreads, read = v < full_vectors ? v : u;
    packed[a] = *reinterpret_cast<const Vector<T, kVectorSize>*>(row + size_t(read) * kVectorSize);
  }
#pragma unroll
  for (int a = 0; a < kAtOnce; ++a) load_vector(x[a], packed[a].v);
  if (u + (kAtOnce - 1) * kThreads >= full_vectors) {
#pragma unroll
    for (int a = 1; a < kAtOnce; ++a)
      for (int i = 0; i < kVectorSize; ++i) x[a][i] = u + a * kThreads < full_vectors ? x[a][i] : -INFINITY;
  }
}

// Returns this thread's first vector after the full ones. Vector u belongs to thread u % kThreads.
template <int kThreads>
__device__ __forceinline__ int first_after(int full_vectors) {
  const int round = full_vectors - full_vectors % kThreads + int(threadIdx.x);
  return round < full_vectors ? round + kThreads : round;
}

// Adds vectors to a running softmax, which has a sum of exp(x - max) for each place in a vector.
template <int kAtOnce>
__device__ __forceinline__ void add_to(float& running_max, float (&sums)[kVectorSize],
                                       const float (&x)[kAtOnce][kVectorSize]) {
  float max = running_max;
#pragma unroll
  for (int a = 0; a < kAtOnce; ++a) max = max_f32(max, max_of(x[a]));
  if (max > running_max) {
    const float rescale = exp_f32(running_max - max);
    VECTOR_LOOP
    for (int i = 0; i < kVectorSize; ++i) sums[i] *= rescale;
    running_max = max;
  }
#pragma unroll
  for (int a = 0; a < kAtOnce; ++a) {
    VECTOR_LOOP
    for (int i = 0; i < kVectorSize; ++i) sums[i] += exp_minus_max(x[a][i], max);
  }
}

// Returns the maximum and the sum over a row's V columns.
template <class T, int kThreads>
__device__ __forceinline__ Softmax softmax_of(const T* row, int V, bool aligned) {
  constexpr int kAtOnce = vectors_at_once(kThreads);
  const int full_vectors = aligned ? V / kVectorSize : 0, vectors = (V + kVectorSize - 1) / kVectorSize;
  Softmax mine{-FLT_MAX, 0};
  float sums[kVectorSize] = {};
  for (int u = int(threadIdx.x); u < full_vectors; u += kThreads * kAtOnce) {
    float x[kAtOnce][kVectorSize];
    load_full_vectors<kThreads>(x, row, u, full_vectors);
    add_to(mine.max, sums, x);
  }
  for (int u = first_after<kThreads>(full_vectors); u < vectors; u += kThreads) {
    float x[1][kVectorSize];
    load_columns(x[0], row, u * kVectorSize, V);
    add_to(mine.max, sums, x);
  }
  for (int i = 0; i < kVectorSize; ++i) mine.sum += sums[i];
  return combine<kThreads>(mine);
}

// Writes row[v] = (softmax * (1 + 2 z_loss logsumexp) - (v == label)) * scale. Each column is written by the thread
// that read it; columns from V on become 0.
template <class T, int kThreads>
__device__ __forceinline__ void write_gradients(T* row, Softmax all, int label, float scale, float z_loss, int V,
                                                int ld, bool aligned) {
  constexpr int kAtOnce = vectors_at_once(kThreads);
  const int full_vectors = aligned ? V / kVectorSize : 0, vectors = (ld + kVectorSize - 1) / kVectorSize;
  const float growth = z_loss > 0 ? 1.0f + 2 * z_loss * all.logsumexp() : 1.0f;
  const float weight = growth / all.sum, factor = weight * scale;
  const bool has_label = label >= 0 && label < V && label / kVectorSize % kThreads == int(threadIdx.x);
  const float label_exp = has_label ? exp_minus_max(to_float(row[label]), all.max) : 0.0f;
  for (int u = int(threadIdx.x); u < full_vectors; u += kThreads * kAtOnce) {
    float x[kAtOnce][kVectorSize];
    load_full_vectors<kThreads>(x, row, u, full_vectors);
#pragma unroll
    for (int a = 0; a < kAtOnce; ++a) {
      VECTOR_LOOP
      for (int i = 0; i < kVectorSize; ++i) x[a][i] = exp_minus_max(x[a][i], all.max) * factor;
      const int v = u + a * kThreads;
      if (v < full_vectors) store_vector(row + v * kVectorSize, x[a]);
    }
  }
  for (int u = first_after<kThreads>(full_vectors); u < vectors; u += kThreads) {
    float x[kVectorSize];
    const int first = u * kVectorSize;
    load_columns(x, row, first, V);
    VECTOR_LOOP
    for (int i = 0; i < kVectorSize; ++i) x[i] = exp_minus_max(x[i], all.max) * factor;
    for (int i = 0; i < kVectorSize; ++i) x[i] = first + i < V ? x[i] : 0.0f;
    store_columns<T>(row, x, first, ld, aligned);
  }
  if (has_label) row[label] = from_float<T>((label_exp * weight - 1.0f) * scale);
}

template <class T, int kThreads>
__device__ __forceinline__ void write_zeros(T* row, int ld, bool aligned) {
  const float zeros[kVectorSize] = {};
  for (int u = int(threadIdx.x); u < (ld + kVectorSize - 1) / kVectorSize; u += kThreads)
    store_columns(row, zeros, u * kVectorSize, ld, aligned);
}

__device__ __forceinline__ float square(float x) { return x * x; }

// One block per row. T is const only in the forward pass, which writes no gradients. `z_losses` is null, and `z_loss`
// 0, without a z-loss.
template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads)
    classifier_kernel(T* logits, float* losses, float* z_losses, const int* labels, const StepState* state,
                      float z_loss, int V, int ld) {
  using Number = std::remove_const_t<T>;
  constexpr bool kBackward = !std::is_const_v<T>;
  T* row = logits + size_t(blockIdx.x) * size_t(ld);
  const int label = labels[blockIdx.x];
  const bool aligned = ld % kVectorSize == 0;  // the launcher has checked the base address
  const bool valid = label >= 0 && label < V;
  if (label == kIgnoredLabel) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    if (threadIdx.x == 0 && z_losses) z_losses[blockIdx.x] = 0;
    if constexpr (kBackward) write_zeros<Number, kThreads>(row, ld, aligned);
    return;
  }
  const Softmax all = softmax_of<Number, kThreads>(row, V, aligned);
  // The thread that owns the label's column writes the losses.
  const int owner = valid ? label / kVectorSize % kThreads : 0;
  if (int(threadIdx.x) == owner) {
    losses[blockIdx.x] = valid ? (all.max - to_float(row[label])) + logf(all.sum) : NAN;
    if (z_losses) z_losses[blockIdx.x] = valid ? z_loss * square(all.logsumexp()) : NAN;
  }
  if constexpr (kBackward)
    write_gradients<Number, kThreads>(row, all, label, valid ? 1.0f / float(state->label_count) : NAN, z_loss, V, ld,
                                      aligned);
}

// One block per row: writes the SoftmaxPart of the columns that this rank holds.
template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads)
    classifier_part_kernel(SoftmaxPart* parts, const T* logits, const int* labels, VocabularyPart part, int ld) {
  const T* row = logits + size_t(blockIdx.x) * size_t(ld);
  const Softmax all = softmax_of<T, kThreads>(row, part.V, ld % kVectorSize == 0);
  if (threadIdx.x != 0) return;
  const int label = labels[blockIdx.x] - part.first;
  parts[blockIdx.x] = {all.max, all.sum, label >= 0 && label < part.V ? to_float(row[label]) : 0.0f};
}

// Combines the parts (ranks, N) of row n into those of the whole row. A part without the label's column has 0 as its
// logit.
__device__ __forceinline__ SoftmaxPart join(const SoftmaxPart* parts, int ranks, int N, int n) {
  SoftmaxPart all = parts[n];
  for (int r = 1; r < ranks; ++r) all.max = max_f32(all.max, parts[size_t(r) * N + n].max);
  all.sum = 0, all.label = 0;
  for (int r = 0; r < ranks; ++r) {
    const SoftmaxPart part = parts[size_t(r) * N + n];
    all.sum += part.sum * exp_f32(part.max - all.max), all.label += part.label;
  }
  return all;
}

template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads)
    classifier_join_kernel(T* logits, const SoftmaxPart* parts, int ranks, const int* labels, const StepState* state,
                           VocabularyPart part, float z_loss, int N, int ld) {
  T* row = logits + size_t(blockIdx.x) * size_t(ld);
  const int label = labels[blockIdx.x];
  const bool aligned = ld % kVectorSize == 0, valid = label >= 0 && label < part.whole;
  if (label == kIgnoredLabel) return write_zeros<T, kThreads>(row, ld, aligned);
  const SoftmaxPart all = join(parts, ranks, N, int(blockIdx.x));
  write_gradients<T, kThreads>(row, {all.max, all.sum}, label - part.first,
                               valid ? 1.0f / float(state->label_count) : NAN, z_loss, part.V, ld, aligned);
}

__global__ void __launch_bounds__(kSumThreads)
    classifier_losses_kernel(float* losses, float* z_losses, const SoftmaxPart* parts, int ranks, const int* labels,
                             float z_loss, int whole, int N) {
  const int n = int(blockIdx.x) * kSumThreads + int(threadIdx.x);
  if (n >= N) return;
  const int label = labels[n];
  const SoftmaxPart all = join(parts, ranks, N, n);
  const bool valid = label >= 0 && label < whole, ignored = label == kIgnoredLabel;
  losses[n] = ignored ? 0.0f : valid ? (all.max - all.label) + logf(all.sum) : NAN;
  if (!z_losses) return;
  const float logsumexp = Softmax{all.max, all.sum}.logsumexp();
  z_losses[n] = ignored ? 0.0f : valid ? z_loss * square(logsumexp) : NAN;
}

__global__ void __launch_bounds__(kSumThreads) sum_losses_kernel(double* total, const float* losses, int N) {
  double sum = 0;
  for (int n = int(threadIdx.x); n < N; n += kSumThreads) sum += double(losses[n]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total += sum;
}

// One block per source. It reads all rows: they are few, and their losses come from the L2 cache.
__global__ void __launch_bounds__(kSumThreads)
    sum_losses_by_source_kernel(double* sums, const float* losses, const int* labels, const int* sources, int N) {
  const int source = int(blockIdx.x);
  double nats = 0, count = 0;
  for (int n = int(threadIdx.x); n < N; n += kSumThreads) {
    if (sources[n] != source || labels[n] == kIgnoredLabel) continue;
    nats += double(losses[n]), count += 1;
  }
  nats = block_sum(nats), count = block_sum(count);
  if (threadIdx.x == 0) sums[2 * source] += nats, sums[2 * source + 1] += count;
}

// ---------------------------------------------------------------------------------------------- launchers

// Throws unless logits are (N, ld) with N >= 1 and ld >= V, and labels (N). Returns N and ld.
struct Sizes {
  int N, ld;
};
Sizes require_rows(const char* who, const Tensor& logits, const Tensor& labels, int V) {
  const int64_t N = logits.rows(), ld = logits.columns();
  REQUIRE(N >= 1 && N <= INT_MAX && V >= 1 && V <= ld && ld <= INT_MAX,
          "%s: logits is %s, of which %d columns are no padding\n  expected (N, ld) with at least one row, and V >= 1 "
          "columns of ld",
          who, logits.text().c_str(), V);
  require_tensor(who, "logits", logits, logits.type, {N, ld});
  require_tensor(who, "labels", labels, DType::int32, {N});
  REQUIRE(ld % kVectorSize || reinterpret_cast<uintptr_t>(logits.data) % 16 == 0,
          "%s: the logits at %p are not 16-byte aligned, though their stride %d is a multiple of %d", who, logits.data,
          int(ld), kVectorSize);
  return {int(N), int(ld)};
}

// Calls start(T(), threads per block), both as constants, for the kernels with one block per row.
template <class F>
void with_rows(const Work& work, const Tensor& logits, int V, const F& start) {
  with_type(work.name, logits.type, [&](auto number) {
    if (V < kLongRow) return start(number, std::integral_constant<int, 32>{});
    if constexpr (!LLMC_CUDA)
      if (!work.stream.device().info().wide_rows) return start(number, std::integral_constant<int, kThreadsOnCpu>{});
    start(number, std::integral_constant<int, kThreadsOnGpu>{});
  });
}
constexpr size_t shared_bytes(int threads) { return threads > 32 ? sizeof(RowShared) : 0; }

void require_part(const char* name, const VocabularyPart& part) {
  REQUIRE(part.first >= 0 && part.V > 0 && part.first + part.V <= part.whole,
          "%s: %d columns from %d of %d: expected at least one, within them", name, part.V, part.first, part.whole);
}

void require_z_loss(const char* who, const ZLoss& z_loss, int64_t N) {
  REQUIRE(z_loss.coefficient >= 0 && (z_loss.coefficient > 0) == bool(z_loss.losses),
          "%s: z-losses %s with the coefficient %g: expected a tensor if it is above 0, and none if it is 0", who,
          z_loss.losses.text().c_str(), double(z_loss.coefficient));
  if (z_loss.losses) require_tensor(who, "z-losses", z_loss.losses, DType::fp32, {N});
}

}  // namespace

void classifier_forward_backward(Stream& stream, const Tensor& logits, const Tensor& losses, const Tensor& labels,
                                 const StepState* state, int V, const ZLoss& z_loss) {
  const char* who = "classifier_forward_backward";
  const auto [N, ld] = require_rows(who, logits, labels, V);
  require_tensor(who, "losses", losses, DType::fp32, {N});
  require_z_loss(who, z_loss, N);
  const Work work{
      stream,
      who,
      {updates(logits), writes(losses), writes(z_loss.losses), reads(labels), reads(&state->label_count, 1)}};
  with_rows(work, logits, V, [&, N = N, ld = ld](auto number, auto threads) {
    using T = decltype(number);
    launch<classifier_kernel<T, threads()>>(work, unsigned(N), threads(), shared_bytes(threads()), logits.as<T>(),
                                            losses.as<float>(), z_loss.losses.as<float>(), labels.as<int>(), state,
                                            z_loss.coefficient, V, ld);
  });
}

void classifier_forward(Stream& stream, const Tensor& losses, const Tensor& logits, const Tensor& labels, int V) {
  const char* who = "classifier_forward";
  const auto [N, ld] = require_rows(who, logits, labels, V);
  require_tensor(who, "losses", losses, DType::fp32, {N});
  const Work work{stream, who, {writes(losses), reads(logits.columns(0, V)), reads(labels)}};
  with_rows(work, logits, V, [&, N = N, ld = ld](auto number, auto threads) {
    using T = decltype(number);
    launch<classifier_kernel<const T, threads()>>(work, unsigned(N), threads(), shared_bytes(threads()), logits.as<T>(),
                                                  losses.as<float>(), nullptr, labels.as<int>(), nullptr, 0.0f, V, ld);
  });
}

void classifier_part(Stream& stream, SoftmaxPart* parts, const Tensor& logits, const Tensor& labels,
                     VocabularyPart part) {
  const char* who = "classifier_part";
  require_part(who, part);
  const auto [N, ld] = require_rows(who, logits, labels, part.V);
  const Work work{stream, who, {writes(parts, size_t(N)), reads(logits.columns(0, part.V)), reads(labels)}};
  with_rows(work, logits, part.V, [&, N = N, ld = ld](auto number, auto threads) {
    using T = decltype(number);
    launch<classifier_part_kernel<T, threads()>>(work, unsigned(N), threads(), shared_bytes(threads()), parts,
                                                 logits.as<T>(), labels.as<int>(), part, ld);
  });
}

void classifier_join(Stream& stream, const Tensor& logits, const SoftmaxPart* parts, int ranks, const Tensor& labels,
                     const StepState* state, VocabularyPart part, float z_loss_coefficient) {
  const char* who = "classifier_join";
  require_part(who, part);
  REQUIRE(ranks > 0, "classifier_join of %d ranks", ranks);
  const auto [N, ld] = require_rows(who, logits, labels, part.V);
  const Work work{
      stream,
      who,
      {updates(logits), reads(parts, size_t(ranks) * size_t(N)), reads(labels), reads(&state->label_count, 1)}};
  with_rows(work, logits, part.V, [&, N = N, ld = ld](auto number, auto threads) {
    using T = decltype(number);
    launch<classifier_join_kernel<T, threads()>>(work, unsigned(N), threads(), shared_bytes(threads()), logits.as<T>(),
                                                 parts, ranks, labels.as<int>(), state, part, z_loss_coefficient, N,
                                                 ld);
  });
}

void classifier_losses(Stream& stream, const Tensor& losses, const SoftmaxPart* parts, int ranks, const Tensor& labels,
                       int whole, const ZLoss& z_loss) {
  const char* who = "classifier_losses";
  const int64_t N = losses.size();
  REQUIRE(ranks > 0 && whole > 0 && N >= 1 && N <= INT_MAX, "classifier_losses of %d ranks, %d columns, %lld rows",
          ranks, whole, (long long)N);
  require_tensor(who, "losses", losses, DType::fp32, {N});
  require_tensor(who, "labels", labels, DType::int32, {N});
  require_z_loss(who, z_loss, N);
  launch<classifier_losses_kernel>(
      {stream, who, {writes(losses), writes(z_loss.losses), reads(parts, size_t(ranks) * size_t(N)), reads(labels)}},
      blocks_for(size_t(N), kSumThreads), kSumThreads, 0, losses.as<float>(), z_loss.losses.as<float>(), parts, ranks,
      labels.as<int>(), z_loss.coefficient, whole, int(N));
}

void sum_losses(Stream& stream, double* sum, const Tensor& losses) {
  const int64_t N = losses.size();
  REQUIRE(N >= 1 && N <= INT_MAX, "sum_losses of %lld losses", (long long)N);
  require_tensor("sum_losses", "losses", losses, DType::fp32, {N});
  launch<sum_losses_kernel>({stream, "sum_losses", {updates(sum, 1), reads(losses)}}, 1, kSumThreads, 0, sum,
                            losses.as<float>(), int(N));
}

void sum_losses_by_source(Stream& stream, const Tensor& sums, const Tensor& losses, const Tensor& labels,
                          const Tensor& sources) {
  const char* who = "sum_losses_by_source";
  const int64_t N = losses.size(), S = sums.size() / 2;
  REQUIRE(N >= 1 && N <= INT_MAX && S >= 1, "%s of %lld losses of %lld sources", who, (long long)N, (long long)S);
  require_tensor(who, "sums", sums, DType::fp64, {S, 2});
  require_tensor(who, "losses", losses, DType::fp32, {N});
  require_tensor(who, "labels", labels, DType::int32, {N});
  require_tensor(who, "sources", sources, DType::int32, {N});
  launch<sum_losses_by_source_kernel>({stream, who, {updates(sums), reads(losses), reads(labels), reads(sources)}},
                                      unsigned(S), kSumThreads, 0, sums.as<double>(), losses.as<float>(),
                                      labels.as<int>(), sources.as<int>(), int(N));
}
