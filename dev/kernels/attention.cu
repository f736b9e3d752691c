// Checks and times llmc/kernels/attention, its plain kernel, against a plain reference in double; and what all its
// kernels have in common: the choice, what is refused.
//
// Covers: promise 7: attention, forward and backward, agrees with a plain reference on ugly shapes, offsets, documents
#include "dev/kernels/attention_cases.h"
#include "llmc/kernels/attention_hopper.cuh"

namespace {

// The reference's own gradients against central differences of sum(out * dout).
void check_reference(Checker& checker) {
  const Case c{2, 5, 7, 4, 2, 16, 3, 1, Documents::packed};
  const Inputs<float> in(c, 5);
  const Placement& place = in.place;
  Doubles x{place.q.gather(in.qkv), place.k.gather(in.qkv), place.v.gather(in.qkv), place.out.gather(in.dout), {}};
  const Reference exact = ReferenceAttention(place, in.document_start, x).result();
  const auto differences = [&](std::vector<double>& parameter) {
    const auto loss = [&](double& value, double shifted) {
      const double before = value;
      value = shifted;
      const Doubles shifted_x{x.q, x.k, x.v, {}, {}};
      const Reference r = ReferenceAttention(place, in.document_start, shifted_x).result();
      value = before;
      double sum = 0;
      for (size_t i = 0; i < r.out.size(); ++i) sum += r.out[i] * x.dout[i];
      return sum;
    };
    std::vector<double> result;
    const double step = 1e-4;  // error about step^2 = 1e-8 and 1e-16 / step
    for (double& value : parameter)
      result.push_back((loss(value, value + step) - loss(value, value - step)) / (2 * step));
    return result;
  };
  const std::vector<int> q_shape{c.B, c.Tq, c.NH, c.HD}, k_shape{c.B, c.Tk, c.NKV, c.HD};
  checker.close("reference dq against differences", exact.dq, differences(x.q), q_shape, 0, 1e-7);
  checker.close("reference dk against differences", exact.dk, differences(x.k), k_shape, 0, 1e-7);
  checker.close("reference dv against differences", exact.dv, differences(x.v), k_shape, 0, 1e-7);
}

// One call cut into pieces gives what the whole gives: keys in two pieces (each adds to dq), then queries in two (each
// adds to dk and dv), as context parallelism cuts them.
template <class T>
void check_pieces(Checker& checker) {
  const Case c{1, 70, 70, 4, 2, 64, 0, 0, Documents::packed};
  const int cut = 41;
  Stream& stream = checker.stream;
  const Inputs<T> in(c, 9);
  const auto [out, lse, whole] = run(stream, in, AttentionKernel::plain);
  const Placement& place = in.place;
  Array<T> qkv(stream, in.qkv), dout(stream, in.dout), full_out(stream, out), piece_out(stream, place.out_size);
  Array<float> full_lse(stream, lse), piece_lse(stream, lse.size()), delta(stream, lse.size());
  Array<int> start(stream, in.document_start);
  const T *q = qkv.data(), *k = q + place.k.first, *v = q + place.v.first;

  Array<T> by_keys(stream, place.size), by_queries(stream, place.size);
  for (int piece = 0; piece < 2; ++piece) {
    AttentionShape s = place.shape;
    s.document_start = start.data();
    s.key_offset = piece ? cut : 0;
    s.Tk = piece ? c.Tk - cut : cut;
    const size_t from = size_t(s.key_offset * s.k.row);
    T* dq = by_keys.data();
    attention_backward<T>(stream, dq, dq + place.k.first + from, dq + place.v.first + from, delta.data(), dout.data(),
                          full_out.data(), full_lse.data(), q, k + from, v + from, s, AttentionKernel::plain,
                          {.dq = piece == 1});
  }
  for (int piece = 0; piece < 2; ++piece) {
    AttentionShape s = place.shape;
    s.query_offset = piece ? cut : 0;
    s.Tq = piece ? c.Tq - cut : cut;
    s.document_start = start.data() + s.query_offset;
    const size_t from = size_t(s.query_offset * s.q.row);
    T* dq = by_queries.data();
    attention_forward<T>(stream, piece_out.data() + from, piece_lse.data(), q + from, k, v, s, AttentionKernel::plain);
    attention_backward<T>(stream, dq + from, dq + place.k.first, dq + place.v.first, delta.data(), dout.data() + from,
                          piece_out.data() + from, piece_lse.data(), q + from, k, v, s, AttentionKernel::plain,
                          {.dkv = piece == 1});
  }
  // Each part and their sum are rounded to T, parts of up to `largest`; and fp32 sums of some 100 terms differ by their
  // order.
  const auto close = [&](const char* what, const std::vector<T>& got, const std::vector<T>& want, double largest) {
    checker.close(format("%s %s", dtype_name(kDType<T>), what), got, to_doubles(want), {int(want.size())},
                  3 * kRounding<T>, 2 * (kRounding<T> + 8 * kUnit) * largest);
  };
  close("keys in two pieces: dq, dk, dv", by_keys.download(), whole, 4);
  close("queries in two pieces: out", piece_out.download(), out, 1);
  close("queries in two pieces: dq, dk, dv", by_queries.download(), whole, 4);
}

void check_choice(Checker& checker) {
  const DeviceInfo& device = checker.stream.device().info();
  for (AttentionKernel asked : {AttentionKernel::automatic, AttentionKernel::plain}) {
    const AttentionChoice choice = choose_attention_kernel(asked, device, DType::bf16, 96);
    checker.that(format("choice of %s", attention_kernel_name(asked)),
                 choice.kernel == AttentionKernel::plain && choice.why.find("head size 96") != std::string::npos,
                 choice.why);
    checker.that(format("the name %s", attention_kernel_name(asked)),
                 attention_kernel_named(attention_kernel_name(asked)) == asked, "is understood");
  }
  // Who takes what: a Hopper, an Ampere with little shared memory, a Turing, and this CPU backend.
  DeviceInfo hopper;
  hopper.name = "a GPU", hopper.gpu = true, hopper.compute_capability = 90, hopper.shared_bytes_per_block = 227 << 10;
  DeviceInfo ampere = hopper, turing = hopper, cramped = hopper, blackwell = hopper;
  ampere.compute_capability = 86, ampere.shared_bytes_per_block = 99 << 10;
  turing.compute_capability = 75;
  cramped.shared_bytes_per_block = 64 << 10;
  const auto chosen = [](const DeviceInfo& info, DType dtype, int HD) {
    return attention_kernel_name(choose_attention_kernel(AttentionKernel::automatic, info, dtype, HD).kernel);
  };
  const auto is = [&](const char* what, const std::string& got, const std::string& want) {
    checker.that(format("choice: %s", what), got == want, got);
  };
  blackwell.compute_capability = 100;
  is("bf16, head size 64, on Hopper", chosen(hopper, DType::bf16, 64), hopper_attention_is_built() ? "hopper" : "mma");
  is("bf16, head size 64, on Blackwell", chosen(blackwell, DType::bf16, 64), "mma");
  is("bf16, head size 128, on Ampere", chosen(ampere, DType::bf16, 128), "mma");
  is("fp32", chosen(hopper, DType::fp32, 128), "plain");
  is("head size 96", chosen(hopper, DType::bf16, 96), "plain");
  is("on Turing", chosen(turing, DType::bf16, 128), "plain");
  is("64 KiB of shared memory", chosen(cramped, DType::bf16, 128), "plain");
  const auto refuses = [&](AttentionKernel kernel, const char* what, const DeviceInfo& info, DType dtype, int HD,
                           const char* why) {
    checker.refused(format("%s: %s", attention_kernel_name(kernel), what), why,
                    [&] { choose_attention_kernel(kernel, info, dtype, HD); });
  };
  for (const AttentionKernel kernel : {AttentionKernel::mma, AttentionKernel::hopper}) {
    if (kernel == AttentionKernel::hopper && !hopper_attention_is_built()) continue;
    refuses(kernel, "fp32", hopper, DType::fp32, 128, "it multiplies bf16");
    refuses(kernel, "head size 96", hopper, DType::bf16, 96, "it takes head sizes 64 and 128");
    refuses(kernel, "64 KiB of shared memory", cramped, DType::bf16, 128, "KiB of shared memory a block, here are 64");
  }
  refuses(AttentionKernel::mma, "on Turing", turing, DType::bf16, 128, "compute capability 8.0");
  refuses(AttentionKernel::hopper, "on Blackwell", blackwell, DType::bf16, 128, "compute capability 9.0");
  const std::string why = choose_attention_kernel(AttentionKernel::automatic, blackwell, DType::bf16, 64).why;
  checker.that("the choice says why it is not hopper", why.find("not hopper: it needs a GPU of") != std::string::npos,
               why);
  checker.refused("an unknown kernel", "expected auto, plain, mma or hopper", [] { attention_kernel_named("flash"); });
  double worst = 0;
  for (int Tq : {1, 5, 9})
    for (int Tk : {1, 4, 12})
      for (int offset = -14; offset <= 14; ++offset) {
        AttentionShape s = separate_attention_shape(1, Tq, Tk, 1, 1, 16);
        (offset < 0 ? s.key_offset : s.query_offset) = std::abs(offset);
        double pairs = 0;
        for (int t = 0; t < Tq; ++t)
          for (int j = 0; j < Tk; ++j) pairs += s.key_offset + j <= s.query_offset + t;
        worst = std::max(worst, std::fabs(pairs - attention_pairs(s)));
      }
  checker.that("attention_pairs", worst == 0, format("differs from counting by %g at most", worst));
}

void check_refusals(Checker& checker) {
  Stream& stream = checker.stream;
  Array<float> q(stream, 4096), k(stream, 4096), v(stream, 4096), out(stream, 4096), lse(stream, 64);
  const auto forward = [&](const AttentionShape& s, float* o, const float* queries) {
    attention_forward<float>(stream, o, lse.data(), queries, k.data(), v.data(), s);
  };
  const auto bad = [&](const char* name, const char* expected, const std::function<void(AttentionShape&)>& spoil) {
    AttentionShape s = separate_attention_shape(2, 4, 4, 4, 2, 16);
    spoil(s);
    checker.refused(name, expected, [&] { forward(s, out.data(), q.data()); });
  };
  bad("HD = 12", "head size 12", [](AttentionShape& s) { s.HD = 12; });
  bad("HD = 8", "head size 8", [](AttentionShape& s) { s.HD = 8; });
  bad("HD = 264", "head size 264", [](AttentionShape& s) { s.HD = 264; });
  bad("no sequences", "B = 0", [](AttentionShape& s) { s.B = 0; });
  bad("no queries", "Tq = 0", [](AttentionShape& s) { s.Tq = 0; });
  bad("no keys", "Tk = 0", [](AttentionShape& s) { s.Tk = 0; });
  bad("no heads", "NH = 0", [](AttentionShape& s) { s.NH = 0; });
  bad("3 key heads for 4", "NKV = 3", [](AttentionShape& s) { s.NKV = 3; });
  bad("a negative offset", "query_offset = -1", [](AttentionShape& s) { s.query_offset = -1; });
  bad("positions beyond int", "positions 0 to 2^31-1", [](AttentionShape& s) { s.key_offset = 2147483647; });
  bad("more rows than int", "too large", [](AttentionShape& s) { s.Tq = 2147483647 / 2 + 1; });
  bad("rows that overlap", "k (B = 2, T = 4, 2 heads of 16) has strides 24", [](AttentionShape& s) { s.k.row = 24; });
  bad("sequences that overlap", "positions overlap", [](AttentionShape& s) { s.v.batch = 120; });
  bad("an uneven stride", "multiples of 8", [](AttentionShape& s) { s.q.row = 68; });
  const AttentionShape good = separate_attention_shape(2, 4, 4, 4, 2, 16);
  checker.refused("no output", "out is at", [&] { forward(good, nullptr, q.data()); });
  checker.refused("no queries at all", "q is at", [&] { forward(good, out.data(), nullptr); });
  checker.refused("unaligned queries", "multiple of 16", [&] { forward(good, out.data(), q.data() + 1); });
  checker.refused("out over q", "out overlaps q", [&] { forward(good, out.data(), out.data() + 256); });
  checker.refused("no lse", "lse is null",
                  [&] { attention_forward<float>(stream, out.data(), nullptr, q.data(), k.data(), v.data(), good); });
  Array<float> dq(stream, 4096), dk(stream, 4096), dv(stream, 4096), dout(stream, 4096), delta(stream, 64);
  const auto backward = [&](float* dk_at, float* delta_at) {
    attention_backward<float>(stream, dq.data(), dk_at, dv.data(), delta_at, dout.data(), out.data(), lse.data(),
                              q.data(), k.data(), v.data(), good);
  };
  checker.refused("dk over v", "dk overlaps v", [&] { backward(v.data(), delta.data()); });
  checker.refused("no dk", "dk is at", [&] { backward(nullptr, delta.data()); });
  checker.refused("no scratch", "delta is null", [&] { backward(dk.data(), nullptr); });
}

}  // namespace

void check(Checker& checker) {
  OtherSchedules orders;
  const Documents none = Documents::none, packed = Documents::packed, arbitrary = Documents::arbitrary;
  const std::vector<Case> cases = {
      // As training has them.
      {1, 1, 1, 1, 1, 16, 0, 0, none, Layout::packed},
      {2, 2, 2, 2, 1, 24, 0, 0, none, Layout::packed},
      {2, 7, 7, 4, 4, 32, 0, 0, none, Layout::packed},
      {3, 33, 33, 4, 2, 32, 0, 0, none, Layout::packed},
      {1, 65, 65, 8, 1, 40, 0, 0, none, Layout::packed},
      {2, 63, 63, 7, 1, 64, 0, 0, none, Layout::packed},
      {1, 130, 130, 4, 1, 64, 0, 0, none, Layout::packed},
      {1, 257, 257, 4, 2, 32, 0, 0, none, Layout::packed},
      {1, 260, 260, 2, 1, 128, 0, 0, none, Layout::packed},
      {1, 129, 129, 7, 1, 72, 0, 0, none, Layout::packed},
      {1, 70, 70, 2, 2, 88, 0, 0, none, Layout::packed},
      {1, 97, 97, 2, 1, 96, 0, 0, none, Layout::packed},
      {1, 66, 66, 2, 1, 256, 0, 0, none, Layout::packed},
      // Fewer or more queries than keys; cached sampling; pieces of a sequence.
      {2, 1, 100, 8, 2, 64, 99, 0},
      {1, 1, 33, 4, 4, 16, 32, 0, none, Layout::gaps},
      {2, 31, 127, 4, 1, 32, 96, 0, none, Layout::sequences_inside},
      {1, 9, 255, 2, 1, 128, 100, 0, none, Layout::gaps},
      {2, 64, 40, 4, 2, 24, 0, 0, none, Layout::gaps},
      {1, 130, 8, 7, 1, 40, 0, 0},
      {1, 65, 65, 4, 2, 64, 64, 32, none, Layout::sequences_inside},
      {2, 50, 60, 4, 2, 32, 100, 120, none, Layout::gaps},  // the first 20 queries see nothing
      {1, 10, 20, 2, 1, 16, 5, 40},                         // no query sees anything
      // Documents.
      {2, 130, 130, 4, 2, 32, 0, 0, packed, Layout::packed},
      {2, 129, 129, 2, 1, 64, 0, 0, packed, Layout::packed},
      {1, 100, 160, 8, 2, 128, 60, 0, packed},
      {2, 90, 90, 4, 1, 32, 30, 20, packed, Layout::gaps},
      {2, 70, 75, 4, 2, 72, 10, 5, arbitrary},
      {2, 140, 140, 2, 2, 64, 0, 0, arbitrary, Layout::packed},
      {1, 70, 70, 2, 1, 256, 0, 0, packed},
      // Softmax far from uniform: scores of about 10, 1e4 and 1e9.
      {1, 130, 130, 4, 2, 32, 0, 0, none, Layout::packed, 3},
      {1, 130, 130, 4, 2, 64, 0, 0, packed, Layout::packed, 3},
      {1, 100, 100, 2, 1, 128, 0, 0, none, Layout::packed, 100},
      {1, 100, 100, 2, 1, 40, 0, 0, none, Layout::packed, 100},
      {1, 67, 67, 2, 1, 64, 0, 0, none, Layout::packed, 3e4},
  };
  for (const Case& c : cases) {
    check_case<float>(checker, orders, c, AttentionKernel::plain);
    check_case<bf16>(checker, orders, c, AttentionKernel::plain);
  }
  check_reference(checker);
  check_pieces<float>(checker);
  check_pieces<bf16>(checker);
  for (const int HD : {16, 40, 64, 128}) {
    check_one_by_one<float>(checker, AttentionKernel::plain, HD);
    check_one_by_one<bf16>(checker, AttentionKernel::plain, HD);
  }
  check_choice(checker);
  check_refusals(checker);
}

void bench(Bencher& bencher) {
  for (const auto& [model, N] : bencher.workloads())
    for (const int T : bencher.gpu() ? std::vector<int>{1024, 4096} : std::vector<int>{std::min(N, 256)}) {
      bench_shape<bf16>(bencher, AttentionKernel::plain, N / T, T, model.NH, model.NKV, model.HD);
      if (T <= 1024) bench_shape<float>(bencher, AttentionKernel::plain, N / T, T, model.NH, model.NKV, model.HD);
    }
}
