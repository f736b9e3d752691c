// Sums of flat buffers against sums of two numbers, which are exact: every element has the rounding of one addition.
//
// Covers: promise 7: accumulate and add: ugly lengths, nothing beyond them
#include "llmc/kernels/accumulate.h"

#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"

template <class T>
void check_type(Checker& checker, OtherSchedules& orders) {
  for (const size_t n : {1, 2, 3, 4, 5, 127, 1023, 1024, 1025, 4095, 4096, 4097, 70001})
    for (const bool add : {true, false}) {
      Generator generator(n);
      const std::vector<float> a = random_normal<float>(generator, n);
      const std::vector<T> b = random_normal<T>(generator, n);
      std::vector<float> want(n);
      for (size_t i = 0; i < n; ++i) want[i] = add ? a[i] + to_float(b[i]) : to_float(b[i]);
      const auto run = [&](Stream& stream) {
        Array<float> sum(stream, a);
        Array<T> x(stream, b);
        accumulate(stream, sum.tensor(), x.tensor(), add);
        return sum.download();
      };
      const std::string name = format("%s n=%zu%s", dtype_name(kDType<T>), n, add ? "" : " set");
      checker.same_bits(name, run(checker.stream), want);
      orders.same_bits(checker, name, std::tuple{want}, [&](Stream& stream) { return std::tuple{run(stream)}; });
    }
}

// sum = a + b, in memory of its own or in place of a, and its largest number, which raises what is there and never
// lowers it.
template <class T>
void check_add(Checker& checker, OtherSchedules& orders) {
  for (const size_t n : {1, 7, 8, 9, 255, 2047, 2048, 2049, 70001}) {
    Generator generator(n);
    const std::vector<T> a = random_normal<T>(generator, n), b = random_normal<T>(generator, n);
    std::vector<T> want(n);
    float largest = 0;
    for (size_t i = 0; i < n; ++i) {
      want[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
      largest = std::max(largest, std::fabs(to_float(want[i])));
    }
    const auto run = [&](Stream& stream, bool in_place, float before) {
      const Array<T> x(stream, a), y(stream, b), apart(stream, n);
      const Array<float> amax(stream, std::vector<float>{before});
      const Array<T>& sum = in_place ? x : apart;
      add(stream, sum.tensor(), x.tensor(), y.tensor(), amax.data());
      return std::tuple{sum.download(), amax.download()};
    };
    for (const bool in_place : {false, true})
      for (const float before : {0.0f, 2 * largest}) {
        const std::string name = format("add %s n=%zu%s", dtype_name(kDType<T>), n, in_place ? " in place" : "");
        const auto [sum, amax] = run(checker.stream, in_place, before);
        checker.same_bits(name, sum, want);
        checker.same_bits(name + " largest", amax, {std::max(before, largest)});
        orders.same_bits(checker, name, std::tuple{sum, amax}, [&](Stream& s) { return run(s, in_place, before); });
      }
  }
}

void check(Checker& checker) {
  OtherSchedules orders;
  check_add<float>(checker, orders);
  check_add<bf16>(checker, orders);
  check_type<float>(checker, orders);
  check_type<bf16>(checker, orders);
  Array<float> numbers(checker.stream, size_t(8));
  const Tensor x = numbers.tensor({2, 4});
  const auto refused = [&](const char* name, const char* says, const Tensor& sum, const Tensor& addend) {
    checker.refused(name, says, [&] { accumulate(checker.stream, sum, addend); });
  };
  refused("nothing", "no numbers", x.rows(0, 0), x.rows(0, 0));
  refused("sums that are missing", "sum is (1, 4) of fp32\n  expected 8 elements of fp32", x.rows(0, 1), x);
  refused("columns", "x (2, 2) is not contiguous", x.rows(0, 1), x.columns(0, 2));
  refused("integers", "no kernel for int32", x, Tensor(numbers.data(), DType::int32, {8}));
  refused("sums in bf16", "sum is (8) of bf16", Tensor(numbers.data(), DType::bf16, {8}), x);
  refused("unaligned", "not 16-byte aligned", Tensor(numbers.data() + 1, {2}), Tensor(numbers.data() + 4, {2}));
}

void bench_add(Bencher& bencher) {
  const size_t n = bencher.gpu_sizes() ? size_t(1) << 27 : size_t(1) << 22;
  const std::vector<bf16> values = repeated_normal<bf16>(n);
  const Array<bf16> a(bencher.stream, values), b(bencher.stream, values), sum(bencher.stream, n);
  bencher.time(format("add bf16 n=%zu", n), 6.0 * double(n), double(n),
               [&] { add(bencher.stream, sum.tensor(), a.tensor(), b.tensor()); });
}

template <class T>
void bench_type(Bencher& bencher, bool add) {
  const size_t n = bencher.gpu_sizes() ? size_t(1) << 28 : size_t(1) << 22;
  Array<float> sum(bencher.stream, repeated_normal<float>(n));
  Array<T> x(bencher.stream, repeated_normal<T>(n));
  bencher.time(format("accumulate %s%s n=%zu", dtype_name(kDType<T>), add ? "" : " set", n),
               (sizeof(T) + (add ? 8.0 : 4.0)) * double(n), double(n),
               [&] { accumulate(bencher.stream, sum.tensor(), x.tensor(), add); });
}

void bench(Bencher& bencher) {
  bench_type<float>(bencher, true);
  bench_type<bf16>(bencher, true);
  bench_type<bf16>(bencher, false);
  bench_add(bencher);
}
