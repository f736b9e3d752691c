// Blocks that wait for each other (llmc/device/block_flag): sums in a fixed order into one place, whichever blocks are
// resident beside each other.
//
// Covers: promise 7: flags between blocks: sums in turn have the bits of one loop, with any number of resident blocks
// Timeout: 120
#include "llmc/device/block_flag.cuh"

#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"
#include "llmc/device/launch.cuh"
#include "llmc/device/work.h"

namespace {

constexpr int kThreads = 96;

struct Shared {
  uint32_t ticket;
};

// sums[c][i] += terms[r][c][i] for r = 0, 1, … in turn, i < kThreads: a block for each (r, c), r first.
__global__ void __launch_bounds__(kThreads)
    ordered_sums(float* sums, const float* terms, uint32_t* flags, uint32_t* tickets, int columns) {
  Shared& shared = shared_memory<Shared>();
  const int i = int(threadIdx.x);
  if (i == 0) shared.ticket = take_ticket(*tickets);
  __syncthreads();
  const int row = int(shared.ticket) / columns, column = int(shared.ticket) % columns;
  const float term = terms[(row * columns + column) * kThreads + i];
  if (i == 0) flag_wait(flags[column], uint32_t(row));
  __syncthreads();
  sums[column * kThreads + i] += term;
  __syncthreads();
  if (i == 0) flag_set(flags[column], uint32_t(row) + 1);
}

std::vector<float> run(Stream& stream, const std::vector<float>& terms, int rows, int columns) {
  const size_t n = size_t(columns) * kThreads;
  Array<float> sums(stream, std::vector<float>(n)), in(stream, terms);
  Array<uint32_t> flags(stream, std::vector<uint32_t>(size_t(columns))), tickets(stream, std::vector<uint32_t>(1));
  launch<ordered_sums>({stream,
                        "ordered_sums",
                        {reads(in.data(), terms.size()), updates(sums.data(), n), updates(flags.data(), flags.size()),
                         updates(tickets.data(), 1)}},
                       unsigned(rows * columns), kThreads, sizeof(Shared), sums.data(), in.data(), flags.data(),
                       tickets.data(), columns);
  return sums.download();
}

}  // namespace

void check(Checker& checker) {
  using Order = CpuBackend::ThreadOrder;
  for (const auto& [rows, columns] : std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {37, 1}, {5, 7}, {200, 3}}) {
    Generator generator{uint64_t(rows)};
    // Of all sizes, so that another order has other bits.
    std::vector<float> terms = random_normal<float>(generator, size_t(rows * columns) * kThreads);
    for (float& t : terms) t *= std::exp2(float(generator.integer(-10, 10)));
    std::vector<float> want(size_t(columns) * kThreads);
    for (size_t t = 0; t < terms.size(); ++t) want[t % want.size()] += terms[t];
    const std::string name = format("%d blocks in turn at %d places", rows, columns);
    checker.same_bits(name, run(checker.stream, terms, rows, columns), want);
    for (const int residents : {1, 2, 7})
      for (const Order order : {Order::forward, Order::reverse, Order::random}) {
        if (!OtherSchedules::wanted() && order != Order::forward) continue;
        CpuBackend cpu = CpuBackend::from_environment();
        cpu.threads = residents, cpu.order = order, cpu.seed += unsigned(residents);
        Device device(0, cpu);
        Stream stream(device, "compute");
        checker.same_bits(format("%s, %d resident, order %d", name.c_str(), residents, int(order)),
                          run(stream, terms, rows, columns), want);
      }
  }
}

// A chain of blocks that do nothing but wait for the one before: what a turn costs.
void bench(Bencher& bencher) {
  const int rows = 1024;
  const std::vector<float> terms(size_t(rows) * kThreads, 1.0f);
  Array<float> sums(bencher.stream, std::vector<float>(kThreads)), in(bencher.stream, terms);
  Array<uint32_t> state(bencher.stream, std::vector<uint32_t>(2));
  bencher.time(format("%d turns", rows), double(terms.size()) * 4, double(terms.size()), [&] {
    clear(bencher.stream, state.data(), 2);
    launch<ordered_sums>({bencher.stream,
                          "ordered_sums",
                          {reads(in.data(), terms.size()), updates(sums.data(), kThreads), updates(state.data(), 2)}},
                         unsigned(rows), kThreads, sizeof(Shared), sums.data(), in.data(), state.data(),
                         state.data() + 1, 1);
  });
}
