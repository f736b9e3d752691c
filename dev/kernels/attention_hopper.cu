// Checks and times llmc/kernels/attention's own kernels for Hopper, against a plain reference in double and against the
// plain kernel. On other GPUs: that they are refused.
//
// Covers: promise 7: Hopper's attention agrees with a plain reference, at sizes around its tiles' edges, with offsets,
// documents, groups
// Timeout: 600
// Turn: 2
#include "dev/kernels/attention_tiled.h"
#include "llmc/kernels/attention_hopper.cuh"

namespace {

constexpr AttentionKernel kHopper = AttentionKernel::hopper;

bool takes_it(const DeviceInfo& info) {
  return !info.gpu || (info.compute_capability == 90 && hopper_attention_is_built());
}

// These have more ranges of queries than an H100 has blocks at once, 4 for each of its 132 multiprocessors. In the
// second and third the queries of a group of heads are one range. The CPU has a multiprocessor a thread: there all
// other cases have more ranges than blocks, too.
std::vector<Case> persistent_cases() {
  return {
      {2, 9, 21, 280, 280, 64, 12, 0, Documents::none, Layout::gaps},
      {2, 9, 21, 560, 280, 64, 12, 0, Documents::none, Layout::gaps},
      {1, 9, 21, 1120, 560, 128, 12, 0, Documents::none, Layout::packed},
  };
}

}  // namespace

void check(Checker& checker) {
  if (const DeviceInfo& info = checker.stream.device().info(); !takes_it(info))
    return checker.refused("not Hopper", "the kernel hopper does not take",
                           [&] { choose_attention_kernel(kHopper, info, DType::bf16, 128); });
  OtherSchedules orders;
  if (!check_sizes(checker, orders, kHopper)) return;
  for (const Case& c : odd_cases()) check_case<bf16>(checker, orders, c, kHopper);
  if (checker.stream.device().info().gpu)
    for (const Case& c : persistent_cases()) check_case<bf16>(checker, orders, c, kHopper);
  check_against_others(checker, kHopper);
}

void bench(Bencher& bencher) {
  if (takes_it(bencher.stream.device().info())) bench_sizes(bencher, kHopper);
}
