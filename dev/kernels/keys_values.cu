// Checks and times llmc/kernels/keys_values: each number is where it belongs, and nothing else is written.
//
// Covers: promise 7: keys and values by head and back, of ugly shapes, to the bit
#include "llmc/kernels/keys_values.h"

#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"

namespace {

struct Shape {
  int N, NH, NKV, HD;  // columns of rows (N, (NH + 2 NKV) HD)
  int width() const { return (NH + 2 * NKV) * HD; }
};

template <class T>
std::vector<T> by_head(const std::vector<T>& rows, const Shape& s) {
  std::vector<T> result;
  for (int head = 0; head < s.NKV; ++head)
    for (int token = 0; token < s.N; ++token)
      for (int which = 0; which < 2; ++which)
        for (int i = 0; i < s.HD; ++i)
          result.push_back(rows[size_t(token) * size_t(s.width()) + size_t((s.NH + which * s.NKV + head) * s.HD + i)]);
  return result;
}

template <class T>
void check_shape(Checker& checker, OtherSchedules& orders, const Shape& s) {
  Generator generator(uint64_t(s.N * 1009 + s.width()));
  const std::vector<T> rows = random_normal<T>(generator, size_t(s.N) * size_t(s.width()));
  const std::vector<T> others = random_normal<T>(generator, rows.size()), want = by_head(rows, s);
  // Forth, and back into rows of which the other columns stay what they are.
  const auto run = [&](Stream& stream) {
    Array<T> from(stream, rows), heads(stream, want.size()), to(stream, others);
    const size_t first = size_t(s.NH * s.HD);
    keys_values_by_head(stream, heads.data(), from.data() + first, s.width(), s.N, s.NKV, s.HD);
    keys_values_by_row(stream, to.data() + first, heads.data(), s.width(), s.N, s.NKV, s.HD);
    return std::tuple{heads.download(), to.download()};
  };
  std::vector<T> back = others;
  for (size_t i = 0; i < back.size(); ++i)
    if (int(i % size_t(s.width())) >= s.NH * s.HD) back[i] = rows[i];
  const std::string name = format("%s N=%d NH=%d NKV=%d HD=%d", dtype_name(kDType<T>), s.N, s.NH, s.NKV, s.HD);
  const auto [heads, to] = run(checker.stream);
  checker.same_bits(name + " by head", heads, want);
  checker.same_bits(name + " by row", to, back);
  orders.same_bits(checker, name, std::tuple{want, back}, run);
}

template <class T>
void bench_type(Bencher& bencher) {
  const Shape s = bencher.gpu() ? Shape{65536, 32, 8, 128} : Shape{1024, 8, 2, 64};
  Array<T> rows(bencher.stream, repeated_normal<T>(size_t(s.N) * size_t(s.width())));
  Array<T> heads(bencher.stream, size_t(s.N) * size_t(2 * s.NKV * s.HD));
  const size_t size = size_t(s.N) * size_t(2 * s.NKV * s.HD);
  T* columns = rows.data() + size_t(s.NH * s.HD);
  const double bytes = 2.0 * double(size) * sizeof(T);
  const std::string shape = format("%s N=%d NKV=%d HD=%d", dtype_name(kDType<T>), s.N, s.NKV, s.HD);
  bencher.time("keys_values_by_head " + shape, bytes, 0,
               [&] { keys_values_by_head(bencher.stream, heads.data(), columns, s.width(), s.N, s.NKV, s.HD); });
  bencher.time("keys_values_by_row " + shape, bytes, 0,
               [&] { keys_values_by_row(bencher.stream, columns, heads.data(), s.width(), s.N, s.NKV, s.HD); });
}

}  // namespace

void check(Checker& checker) {
  OtherSchedules orders;
  for (const Shape& s : {Shape{1, 1, 1, 16}, Shape{7, 3, 1, 24}, Shape{33, 4, 2, 64}, Shape{65, 8, 8, 128},
                         Shape{300, 2, 1, 8}, Shape{5, 1, 3, 256}}) {
    check_shape<float>(checker, orders, s);
    check_shape<bf16>(checker, orders, s);
  }
  Array<float> a(checker.stream, size_t(64)), b(checker.stream, size_t(64));
  checker.refused("heads of 12", "steps of 8",
                  [&] { keys_values_by_head(checker.stream, a.data(), b.data(), 32, 1, 1, 12); });
  checker.refused("a short row", "at least 2 x 1 x 16",
                  [&] { keys_values_by_head(checker.stream, a.data(), b.data(), 24, 1, 1, 16); });
  checker.refused("in place", "overlap", [&] { keys_values_by_row(checker.stream, a.data(), a.data(), 32, 1, 1, 16); });
}

void bench(Bencher& bencher) {
  bench_type<float>(bencher);
  bench_type<bf16>(bencher);
}
