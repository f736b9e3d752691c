// The search for an infinity or NaN (contract: not_finite.h). It runs once, at the end of a run, so it need not be
// fast.
#include "llmc/kernels/not_finite.h"

#include "llmc/base/error.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;
constexpr int kEach = 16;  // elements that a thread looks at

template <class T>
__global__ void __launch_bounds__(kThreads)
    find_kernel(uint32_t* first, const T* x, uint32_t n, uint32_t columns, size_t stride) {
  const uint64_t begin = uint64_t(blockIdx.x) * kThreads * kEach + threadIdx.x;
  for (int k = 0; k < kEach; ++k) {
    const uint64_t i = begin + uint64_t(k) * kThreads;
    if (i >= n) return;
    const float value = to_float(x[i / columns * stride + i % columns]);
    if ((float_to_bits(value) & 0x7f800000u) == 0x7f800000u) return atomic_min(first, uint32_t(i));
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void find_not_finite(Stream& stream, const Tensor& x, uint32_t* first) {
  const char* who = "find_not_finite";
  REQUIRE(x.size() > 0 && x.size() < int64_t(~0u), "%s in %lld elements", who, (long long)x.size());
  with_type(who, x.type, [&](auto number) {
    using T = decltype(number);
    launch<find_kernel<T>>({stream, who, {reads(x), updates(first, 1)}},
                           blocks_for(size_t(x.size()), size_t(kThreads) * kEach), kThreads, 0, first, x.as<T>(),
                           uint32_t(x.size()), uint32_t(x.columns()), size_t(x.row_stride()));
  });
}
