// How much of causal attention the kernels leave out where a window hides it: the keys that are multiplied with each
// query in forward, and the queries with each key in backward, counted on the shipped kernels, on the CPU or a GPU.
//
//   build/cpu/bench/attention_tiles [T]          (8192)
//
// A kernel multiplies a whole tile, and what a query does not see by zero. So a NaN among the values shows in the
// outputs of all queries whose tiles hold it. Each number of a head can hold one such probe: number d of the value at
// key d T / HD. The same with the gradient of the output shows in the gradients of values.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "dev/kernels/array.h"
#include "llmc/base/text.h"
#include "llmc/kernels/attention.h"

namespace {

constexpr int kHD = 128;

struct Counted {
  double keys = 0, queries = 0;  // multiplied with a query, and with a key, on average
};

// Returns x (T, HD) with the probes in it.
std::vector<bf16> with_probes(std::vector<bf16> x, int T) {
  for (int d = 0; d < kHD; ++d) x[size_t(d * (T / kHD)) * kHD + size_t(d)] = from_float<bf16>(NAN);
  return x;
}
// Returns how many rows of the other side meet a row, on average over those of `x` (T, HD).
double met(const std::vector<bf16>& x, int T) {
  double seen = 0;
  for (const bf16 number : x) seen += std::isnan(to_float(number));
  return seen / T * (T / kHD);
}

Counted count(Stream& stream, AttentionKernel kernel, int T, int window) {
  Generator generator(1);
  const size_t size = size_t(T) * kHD;
  const std::vector<bf16> numbers = random_normal<bf16>(generator, size);
  std::vector<int> first(size_t(T), 0);
  for (int t = 0; t < T; ++t) first[size_t(t)] = std::max(0, t - window + 1);
  const Array<bf16> q(stream, numbers), k(stream, numbers), v(stream, with_probes(numbers, T)), finite(stream, numbers),
      dout(stream, with_probes(numbers, T)), out(stream, size), dq(stream, size), dk(stream, size), dv(stream, size);
  const Array<float> lse(stream, size_t(T)), rowsum_dO_O(stream, size_t(T));
  const Array<int> start(stream, first);
  const TensorShape heads{1, T, 1, kHD};
  const AttentionOptions options{0, 0, start.tensor({1, T}), window, kernel};
  attention_forward(stream, out.tensor(heads), lse.tensor({1, 1, T}), q.tensor(heads), k.tensor(heads), v.tensor(heads),
                    options);
  const double keys = met(out.download(), T);
  attention_backward(stream, dq.tensor(heads), dk.tensor(heads), dv.tensor(heads), rowsum_dO_O.tensor({1, 1, T}),
                     dout.tensor(heads), finite.tensor(heads), lse.tensor({1, 1, T}), q.tensor(heads), k.tensor(heads),
                     finite.tensor(heads), options);
  return {keys, met(dv.download(), T)};
}

}  // namespace

int main(int argc, char** argv) try {
  const int T = argc > 1 ? std::atoi(argv[1]) : 8192;
  REQUIRE(T >= kHD && T % kHD == 0, "T = %d: expected a multiple of %d", T, kHD);
  Device device(0);
  Stream stream(device, "compute");
  printf("T = %d, head size %d, on %s; counted to %d\n", T, kHD, device.info().name.c_str(), T / kHD);
  printf("kernel  window | pairs, of causal | keys a query, of causal | queries a key, of causal\n");
  for (const AttentionKernel kernel : {AttentionKernel::mma, AttentionKernel::hopper}) {
    Counted causal;
    for (int window = T; window >= 128; window /= 2) {
      const Counted c = count(stream, kernel, T, window);
      if (window == T) causal = c;
      printf("%-7s %6d | %9.1f  %5.1f%% | %9.1f  %11.1f%% | %9.1f  %11.1f%%\n", attention_kernel_name(kernel), window,
             attention_pairs(T, T, 0, window) / T, 100 * attention_pairs(T, T, 0, window) / attention_pairs(T, T, 0),
             c.keys, 100 * c.keys / causal.keys, c.queries, 100 * c.queries / causal.queries);
      fflush(stdout);
    }
  }
  return 0;
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
