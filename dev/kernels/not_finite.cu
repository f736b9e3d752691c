// The search for an infinity or NaN against a plain one on the host.
//
// Covers: promise 7: not_finite: the first infinity or NaN of vectors and of matrices whose rows lie apart, in both
// types
#include "llmc/kernels/not_finite.h"

#include "dev/kernels/check.h"

namespace {

template <class T>
void check_type(Checker& checker, const char* name) {
  Stream& stream = checker.stream;
  Generator generator(4);
  const float bad[] = {float(NAN), -float(NAN), INFINITY, -INFINITY};
  int wrong = 0, count = 0;
  for (const int rows : {1, 2, 129})
    for (const int columns : {1, 7, 64, 4097})
      for (const int gap : {0, 3}) {
        const int stride = columns + gap, n = rows * columns;
        // The gaps hold NaN, which must not be found, and the largest numbers are finite.
        std::vector<T> values(size_t(rows) * size_t(stride), from_float<T>(float(NAN)));
        for (int i = 0; i < n; ++i)
          values[size_t(i / columns * stride + i % columns)] = from_float<T>(i % 3 ? -3.3e38f : float(i));
        for (const int places : {0, 1, 3}) {
          std::vector<T> some = values;
          uint32_t want = ~0u;
          for (int place = 0; place < places; ++place) {
            const int i = place == 1 ? n - 1 : generator.integer(0, n - 1);
            some[size_t(i / columns * stride + i % columns)] = from_float<T>(bad[(place + n) % 4]);
            want = std::min(want, uint32_t(i));
          }
          const Array<T> x(stream, some);
          for (const uint32_t known : {~0u, 5u}) {
            const Array<uint32_t> first(stream, std::vector{known});
            const Tensor all = x.tensor({rows, stride});
            find_not_finite(stream, rows == 1 && gap == 0 ? x.tensor() : all.columns(0, columns), first.data());
            wrong += first.download()[0] != std::min(want, known), ++count;
          }
        }
      }
  checker.that(format("the first one, %s", name), wrong == 0, format("%d of %d wrong", wrong, count));
}

}  // namespace

void check(Checker& checker) {
  check_type<float>(checker, "fp32");
  check_type<bf16>(checker, "bf16");
  const Array<float> x(checker.stream, 8);
  const Array<uint32_t> first(checker.stream, std::vector{~0u});
  checker.refused("nothing to look at", "in 0 elements",
                  [&] { find_not_finite(checker.stream, x.tensor().columns(0, 0), first.data()); });
}

void bench(Bencher& bencher) {
  Stream& stream = bencher.stream;
  const size_t n = bencher.gpu_sizes() ? size_t(1) << 28 : size_t(1) << 20;
  const Array<bf16> x(stream, std::vector<bf16>(n, from_float<bf16>(1)));
  const Array<uint32_t> first(stream, std::vector{~0u});
  bencher.time(format("find_not_finite, %zu elements in bf16", n), double(n) * 2, 0,
               [&] { find_not_finite(stream, x.tensor(), first.data()); });
}
