// The L2 norm of all gradients, the clip factor and the decision about the update (contract: global_norm.h).
//
// A block squares kElementsPerBlock elements. A thread keeps 8 separate sums, one for each position in its vector of 8
// elements, so that the compiler vectorizes the loop. Sums are fp64: an fp32 square overflows beyond 1.8e19, and an
// fp32 sum of 10^10 squares would be too inaccurate.
#include "llmc/kernels/global_norm.h"

#include <cmath>

#include "llmc/base/error.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"
#include "llmc/kernels/spike_window.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 128;
constexpr int kVectorSize = 8;  // elements that a thread processes at once
constexpr size_t kElementsPerBlock = 1 << 15;
constexpr int kSumThreads = 256;
static_assert(kSumThreads >= SpikeWindow::kSteps);

template <class T>
__device__ __forceinline__ void block_squares(double* __restrict__ partials, const T* __restrict__ numbers, size_t n) {
  const size_t begin = size_t(blockIdx.x) * kElementsPerBlock,
               end = begin + kElementsPerBlock < n ? begin + kElementsPerBlock : n;
  double sums[kVectorSize] = {};
  for (size_t first = begin + size_t(threadIdx.x) * kVectorSize; first < end; first += size_t(kThreads) * kVectorSize) {
    if (first + kVectorSize <= end) {
      float x[kVectorSize];
      load_vector(x, numbers + first);
      VECTOR_LOOP
      for (int i = 0; i < kVectorSize; ++i) sums[i] += double(x[i]) * double(x[i]);
    } else {
      // The fixed trip count keeps sums[] in registers.
      for (int i = 0; i < kVectorSize; ++i)
        if (first + i < end) sums[i] += double(to_float(numbers[first + i])) * double(to_float(numbers[first + i]));
    }
  }
  double sum = 0;
  for (int i = 0; i < kVectorSize; ++i) sum += sums[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    squares_kernel(double* __restrict__ partials, const float* __restrict__ numbers, size_t n) {
  block_squares(partials, numbers, n);
}
__global__ void __launch_bounds__(kThreads)
    squares_bf16_kernel(double* __restrict__ partials, const bf16* __restrict__ numbers, size_t n) {
  block_squares(partials, numbers, n);
}

// Returns the sum of partials (count) in every thread of the block.
__device__ __forceinline__ double sum_of(const double* partials, size_t count) {
  double sum = 0;
  for (size_t i = threadIdx.x; i < count; i += kSumThreads) sum += partials[i];
  return block_sum(sum);
}

__global__ void __launch_bounds__(kSumThreads) sum_kernel(double* total, const double* partials, size_t count) {
  const double sum = sum_of(partials, count);
  if (threadIdx.x == 0) *total = sum;
}

__global__ void __launch_bounds__(kSumThreads)
    finish_kernel(StepState* state, const double* partials, size_t count, UpdateStart start) {
  const float norm = float(sqrt(sum_of(partials, count))), limit = state->grad_clip;
  const bool finite = norm < INFINITY && fabs(state->loss_sum) < INFINITY && state->not_finite_ranks == 0;
  UpdateProgress& progress = *start.progress;
  const bool judges = start.spikes.window && finite && !progress.halted && state->label_count > 0;
  const uint32_t spike = judges ? judge_step(*start.spikes.window, start.spikes.deviations,
                                             float(state->loss_sum / double(state->label_count)), norm)
                                : 0;
  if (threadIdx.x != 0) return;
  float factor = limit == 0.0f || norm <= limit ? 1.0f : limit / norm;
  if (!(norm < INFINITY)) factor = NAN;
  state->grad_norm = norm;
  state->clip_factor = factor;

  if (!finite || (spike && start.spikes.window->in_a_row >= start.spikes.most_in_a_row)) progress.halted = 1;
  const uint32_t held = (progress.halted ? kHalted : 0) | spike;
  if (!held) {
    ++progress.made;
    state->bias_correction1 = bias_correction(start.constants.beta1, progress.made);
    state->bias_correction2 = bias_correction(start.constants.beta2, progress.made);
    for (size_t i = 0; i < start.amax.count; ++i) start.amax.values[i] = 0;
  }
  state->updates = progress.made;
  state->held = held;
}

// ---------------------------------------------------------------------------------------------- launchers

void require_partials(const char* who, const Tensor& partials) {
  require_tensor(who, "partials", partials, DType::fp64, {-1});
  REQUIRE(partials.size() > 0, "%s of no partial sums", who);
}

}  // namespace

size_t global_norm_partials(size_t n) { return (n + kElementsPerBlock - 1) / kElementsPerBlock; }

void global_norm_squares(Stream& stream, const Tensor& partials, const Tensor& numbers) {
  const char* who = "global_norm_squares";
  const bool narrow = numbers.type == DType::bf16;
  require_elements(who, "numbers", numbers, narrow ? DType::bf16 : DType::fp32, -1);
  const size_t n = size_t(numbers.size()), count = global_norm_partials(n);
  REQUIRE(n > 0, "%s of no numbers", who);
  REQUIRE(reinterpret_cast<uintptr_t>(numbers.data) % 16 == 0, "%s: the numbers at %p are not 16-byte aligned", who,
          numbers.data);
  require_tensor(who, "partials", partials, DType::fp64, {int64_t(count)});
  const Work work{stream, who, {reads(numbers), writes(partials)}};
  if (narrow)
    launch<squares_bf16_kernel>(work, unsigned(count), kThreads, 0, partials.as<double>(), numbers.as<bf16>(), n);
  else launch<squares_kernel>(work, unsigned(count), kThreads, 0, partials.as<double>(), numbers.as<float>(), n);
}

void global_norm_sum(Stream& stream, const Tensor& total, const Tensor& partials) {
  const char* who = "global_norm_sum";
  require_partials(who, partials);
  require_tensor(who, "total", total, DType::fp64, {1});
  launch<sum_kernel>({stream, who, {reads(partials), writes(total)}}, 1, kSumThreads, 0, total.as<double>(),
                     partials.as<double>(), size_t(partials.size()));
}

void global_norm_finish(Stream& stream, StepState* state, const Tensor& partials, const UpdateStart& start) {
  const char* who = "global_norm_finish";
  require_partials(who, partials);
  launch<finish_kernel>({stream,
                         who,
                         {reads(partials), updates(state, 1), updates(start.progress, 1),
                          updates(start.amax.values, start.amax.count), updates(start.spikes.window, 1)}},
                        1, kSumThreads, 0, state, partials.as<double>(), size_t(partials.size()), start);
}
