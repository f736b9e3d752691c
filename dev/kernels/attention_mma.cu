// Checks and times llmc/kernels/attention on tensor cores, against a plain reference in double and against the plain
// kernel, also with the tiles of GPUs that have 99 KiB of shared memory a block.
//
// Covers: promise 7: attention on tensor cores agrees with a plain reference, at sizes around its tiles' edges, with
// offsets, documents, groups
// Timeout: 600
// Turn: 3
#include "dev/kernels/attention_tiled.h"

namespace {

constexpr AttentionKernel kMma = AttentionKernel::mma;

}  // namespace

void check(Checker& checker) {
  OtherSchedules orders;
  if (!check_sizes(checker, orders, kMma)) return;
  CpuBackend small = CpuBackend::from_environment();
  small.shared_bytes = 99 << 10;
  Device small_device(0, small);
  Checker small_checker(small_device);
  OtherSchedules small_orders(small);
  for (const Case& c : odd_cases()) {
    check_case<bf16>(checker, orders, c, kMma);
    check_case<bf16>(small_checker, small_orders, c, kMma);
  }
  checker.all_of("tiles for 99 KiB", small_checker);
  check_against_others(checker, kMma);
}

void bench(Bencher& bencher) { bench_sizes(bencher, kMma); }
