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

  template <class T>
  Tensor heads(const Array<T>& by_head) const {
    return by_head.tensor({NKV, N, 2, HD});
  }
  template <class T>
  Tensor columns(const Array<T>& rows) const {  // of the keys and values
    return rows.tensor({N, width()}).columns(NH * HD, 2 * NKV * HD);
  }
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
    keys_values_by_head(stream, s.heads(heads), s.columns(from));
    keys_values_by_row(stream, s.columns(to), s.heads(heads));
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

void check_refusals(Checker& checker) {
  Array<float> numbers(checker.stream, size_t(64)), others(checker.stream, size_t(64));
  Array<bf16> narrow(checker.stream, size_t(64));
  const Tensor heads = numbers.tensor({1, 1, 2, 16}), rows = others.tensor({1, 32});
  const auto by_head = [&](const Tensor& to, const Tensor& from) {
    return [=, &checker] { keys_values_by_head(checker.stream, to, from); };
  };
  checker.refused("heads of 12", "steps of 8", by_head(numbers.tensor({1, 1, 2, 12}), others.tensor({1, 24})));
  checker.refused("no tokens", "by_head is (1, 0, 2, 16)", by_head(numbers.tensor({1, 0, 2, 16}), rows.rows(0, 0)));
  checker.refused("a short row", "rows is (1, 24) of fp32\n  expected (1, 32)", by_head(heads, rows.columns(0, 24)));
  checker.refused("another type", "rows is (1, 32) of bf16", by_head(heads, narrow.tensor({1, 32})));
  checker.refused("rows 36 numbers apart", "lie 36 apart: expected a multiple of 8",
                  by_head(heads, others.tensor({1, 36}).columns(0, 32)));
  checker.refused("unaligned rows", "not 16-byte aligned", by_head(heads, Tensor(others.data() + 1, {1, 32})));
  checker.refused("in place", "overlap", [&] { keys_values_by_row(checker.stream, numbers.tensor({1, 32}), heads); });
}

template <class T>
void bench_type(Bencher& bencher) {
  const Shape s = bencher.gpu_sizes() ? Shape{65536, 32, 8, 128} : Shape{1024, 8, 2, 64};
  Array<T> rows(bencher.stream, repeated_normal<T>(size_t(s.N) * size_t(s.width())));
  Array<T> heads(bencher.stream, size_t(s.N) * size_t(2 * s.NKV * s.HD));
  const size_t size = size_t(s.N) * size_t(2 * s.NKV * s.HD);
  const double bytes = 2.0 * double(size) * sizeof(T);
  const std::string shape = format("%s N=%d NKV=%d HD=%d", dtype_name(kDType<T>), s.N, s.NKV, s.HD);
  bencher.time("keys_values_by_head " + shape, bytes, 0,
               [&] { keys_values_by_head(bencher.stream, s.heads(heads), s.columns(rows)); });
  bencher.time("keys_values_by_row " + shape, bytes, 0,
               [&] { keys_values_by_row(bencher.stream, s.columns(rows), s.heads(heads)); });
}

}  // namespace

void check(Checker& checker) {
  OtherSchedules orders;
  for (const Shape& s : {Shape{1, 1, 1, 16}, Shape{7, 3, 1, 24}, Shape{33, 4, 2, 64}, Shape{65, 8, 8, 128},
                         Shape{300, 2, 1, 8}, Shape{5, 1, 3, 256}, Shape{3, 2, 2, 1048}}) {
    check_shape<float>(checker, orders, s);
    check_shape<bf16>(checker, orders, s);
  }
  check_refusals(checker);
}

void bench(Bencher& bencher) {
  bench_type<float>(bencher);
  bench_type<bf16>(bencher);
}
