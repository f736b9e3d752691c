// Checks and times llmc/kernels/swiglu against a plain reference in double.
// Covers: promise 7: swiglu forward and backward agree with a plain reference on ugly shapes and for extreme gates
#include "llmc/kernels/swiglu.h"

#include <tuple>

#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"

namespace {

template <class T>
using Outputs = std::tuple<std::vector<T>, std::vector<T>>;  // out, dgate_up

template <class T>
Outputs<T> run(Stream& stream, const std::vector<T>& gate_up, const std::vector<T>& dout, int N, int FF,
               bool in_place = false) {
  Array<T> in(stream, gate_up), d(stream, dout), out(stream, dout.size()), apart(stream, gate_up.size());
  swiglu_forward(stream, out.tensor({N, FF}), in.tensor({N, 2 * FF}));
  Array<T>& din = in_place ? in : apart;
  swiglu_backward(stream, din.tensor({N, 2 * FF}), d.tensor({N, FF}), in.tensor({N, 2 * FF}));
  return {out.download(), din.download()};
}

template <class T>
void compare(Checker& checker, const std::string& name, const Outputs<T>& outputs, const std::vector<T>& gate_up,
             const std::vector<T>& dout, int N, int FF) {
  std::vector<double> want(dout.size()), want_d(gate_up.size());
  for (size_t n = 0; n < size_t(N); ++n)
    for (size_t f = 0; f < size_t(FF); ++f) {
      const size_t g = n * 2 * FF + f, u = g + FF, o = n * FF + f;
      const double gate = to_double(gate_up[g]), up = to_double(gate_up[u]), d = to_double(dout[o]);
      const double sigmoid = 1 / (1 + std::exp(-gate));
      want[o] = gate * sigmoid * up;
      want_d[g] = d * up * sigmoid * (1 + gate * (1 - sigmoid));
      want_d[u] = d * gate * sigmoid;
    }
  // e^x is right to 2 ulp and some five roundings follow; bf16 rounds once more. Where silu' crosses zero, and where
  // e^-x or the result leaves fp32's normal numbers, the error is a small part of d * up: absolute.
  const double relative = 8 * 0x1p-23 + (sizeof(T) == 2 ? 0x1p-8 : 0);
  checker.close(name + " out", std::get<0>(outputs), want, {N, FF}, relative, 1e-30);
  checker.close(name + " dgate_up", std::get<1>(outputs), want_d, {N, 2, FF}, relative, 4e-6);
}

template <class T>
void check_shape(Checker& checker, OtherSchedules& orders, int N, int FF) {
  Generator generator(uint64_t(N) * 10007 + FF);
  const auto gate_up = random_normal<T>(generator, size_t(N) * 2 * FF, 2);
  const auto dout = random_normal<T>(generator, size_t(N) * FF);
  const std::string name = format("%s N=%d FF=%d", dtype_name(kDType<T>), N, FF);
  const Outputs<T> outputs = run(checker.stream, gate_up, dout, N, FF);
  compare(checker, name, outputs, gate_up, dout, N, FF);
  checker.same_bits(name + " dgate_up in place of gate_up",
                    std::get<1>(run(checker.stream, gate_up, dout, N, FF, true)), std::get<1>(outputs));
  orders.same_bits(checker, name, outputs, [&](Stream& stream) { return run(stream, gate_up, dout, N, FF); });
}

// Gates far outside of what exp can hold: silu is the gate itself, or nothing.
template <class T>
void check_extremes(Checker& checker) {
  const std::vector<float> gates = {0,  -0.0f, 1e-30f, -1e-30f, 1e-3f, -1e-3f, 10,  -10,  20,   -20,   60,    -60,
                                    87, -87,   88,     -88,     89,    -89,    100, -100, 1000, -1000, 1e30f, -1e30f};
  for (int FF : {int(gates.size()), int(gates.size()) - 1}) {  // in vectors, and one by one
    std::vector<T> gate_up(2 * size_t(FF)), dout(size_t(FF), from_float<T>(0.5f));
    for (int f = 0; f < FF; ++f) gate_up[f] = from_float<T>(gates[f]), gate_up[FF + f] = from_float<T>(-1.5f);
    compare(checker, format("%s extreme gates, FF=%d", dtype_name(kDType<T>), FF),
            run(checker.stream, gate_up, dout, 1, FF), gate_up, dout, 1, FF);
  }
}

void check_refusals(Checker& checker) {
  Stream& stream = checker.stream;
  Array<float> x(stream, 64), d(stream, 32);
  Array<bf16> narrow(stream, 64);
  const Tensor in = x.tensor({2, 32}), out = d.tensor({2, 16}), one_in = x.tensor({1, 32}), one_out = d.tensor({1, 16});
  const auto forward = [&](const Tensor& to, const Tensor& from) {
    return [=, &stream] { swiglu_forward(stream, to, from); };
  };
  const auto backward = [&](const Tensor& to, const Tensor& dout, const Tensor& from) {
    return [=, &stream] { swiglu_backward(stream, to, dout, from); };
  };
  checker.refused("no rows", "swiglu_forward: out is (0, 16)", forward(out.rows(0, 0), in.rows(0, 0)));
  checker.refused("no columns", "dout is (2, 0)", backward(in, out.columns(0, 0), in.columns(0, 0)));
  checker.refused("rows that are missing", "gate_up is (1, 32) of fp32\n  expected (2, 32) of fp32",
                  forward(out, one_in));
  checker.refused("another type", "gate_up is (2, 32) of bf16", forward(out, narrow.tensor({2, 32})));
  checker.refused("no gradient", "dgate_up is absent", backward({}, out, in));
  checker.refused("columns of a wider matrix", "out (2, 8) is not contiguous",
                  forward(out.columns(0, 8), in.first({2, 16})));
  checker.refused("out in gate_up", "out overlaps", forward(x.tensor({2, 16}), in));
  checker.refused("dgate_up over dout", "overlaps dout", backward(d.tensor({1, 32}), one_out, one_in));
  checker.refused("dgate_up over a part of gate_up", "dgate_up overlaps gate_up",
                  backward(Tensor(x.data() + 4, {1, 32}), one_out, one_in));
  checker.refused("unaligned rows", "align", forward(one_out, Tensor(x.data() + 1, {1, 32})));
}

template <class T>
void bench_shape(Bencher& bencher, int N, int FF) {
  Stream& stream = bencher.stream;
  const size_t size = size_t(N) * FF;
  Array<T> gate_up(stream, repeated_normal<T>(2 * size)), dout(stream, repeated_normal<T>(size));
  Array<T> out(stream, size), dgate_up(stream, 2 * size);
  const std::string shape = format("%s N=%d FF=%d", dtype_name(kDType<T>), N, FF);
  bencher.time("swiglu_forward " + shape, 3.0 * size * sizeof(T), 5.0 * size, [&] {
    swiglu_forward(stream, out.tensor({N, FF}), gate_up.tensor({N, 2 * FF}));
  });
  bencher.time("swiglu_backward " + shape, 5.0 * size * sizeof(T), 11.0 * size, [&] {
    swiglu_backward(stream, dgate_up.tensor({N, 2 * FF}), dout.tensor({N, FF}), gate_up.tensor({N, 2 * FF}));
  });
}

}  // namespace

void check(Checker& checker) {
  OtherSchedules orders;
  for (const auto& [N, FF] : std::vector<std::pair<int, int>>{{1, 1},
                                                              {1, 2},
                                                              {2, 7},
                                                              {7, 8},
                                                              {9, 9},
                                                              {31, 33},
                                                              {33, 31},
                                                              {63, 65},
                                                              {65, 64},
                                                              {64, 63},
                                                              {127, 16},
                                                              {255, 24},
                                                              {257, 40},
                                                              {130, 352},
                                                              {3, 1000},
                                                              {5, 1025},
                                                              {2, 4096},
                                                              {1, 8200},
                                                              {300, 3}}) {
    check_shape<float>(checker, orders, N, FF);
    check_shape<bf16>(checker, orders, N, FF);
  }
  check_extremes<float>(checker);
  check_extremes<bf16>(checker);
  check_refusals(checker);
}

void bench(Bencher& bencher) {
  for (const auto& [model, N] : bencher.workloads()) {
    bench_shape<bf16>(bencher, N, model.FF);
    bench_shape<float>(bencher, N, model.FF);
  }
}
