// Sums of flat buffers against sums of two numbers, which are exact: every element has the rounding of one addition.
//
// Covers: promise 7: accumulate: ugly lengths, nothing beyond them
#include "llmc/kernels/accumulate.h"

#include "dev/kernels/check.h"
#include "dev/kernels/other_orders.h"

void check(Checker& checker) {
  OtherOrders orders;
  for (const size_t n : {1, 2, 3, 4, 5, 127, 1023, 1024, 1025, 4095, 4096, 4097, 70001}) {
    Generator generator(n);
    const std::vector<float> a = random_normal<float>(generator, n), b = random_normal<float>(generator, n);
    std::vector<float> want(n);
    for (size_t i = 0; i < n; ++i) want[i] = a[i] + b[i];
    const auto run = [&](Stream& stream) {
      Array<float> sum(stream, a), x(stream, b);
      accumulate(stream, sum.data(), x.data(), n);
      return sum.download();
    };
    checker.same_bits(format("n=%zu", n), run(checker.stream), want);
    orders.same_bits(checker, format("n=%zu", n), std::tuple{want},
                     [&](Stream& stream) { return std::tuple{run(stream)}; });
  }
  Array<float> x(checker.stream, size_t(8));
  checker.refused("nothing", "no numbers", [&] { accumulate(checker.stream, x.data(), x.data(), 0); });
  checker.refused("unaligned", "not 16-byte aligned",
                  [&] { accumulate(checker.stream, x.data() + 1, x.data() + 4, 2); });
}

void bench(Bencher& bencher) {
  const size_t n = bencher.gpu() ? size_t(1) << 28 : size_t(1) << 22;
  Array<float> sum(bencher.stream, repeated_normal<float>(n)), x(bencher.stream, repeated_normal<float>(n));
  bencher.time(format("accumulate n=%zu", n), 12.0 * double(n), double(n),
               [&] { accumulate(bencher.stream, sum.data(), x.data(), n); });
}
