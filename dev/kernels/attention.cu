// Checks and times llmc/kernels/attention, its plain kernel, against a plain reference in double; and what all its
// kernels have in common: the choice, what is refused.
//
// Covers: promise 7: attention, forward and backward, agrees with a plain reference on ugly shapes, offsets, documents
#include "dev/kernels/attention_cases.h"
#include "dev/kernels/sizes.h"
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

// A call that is cut into chunks gives what the whole gives: keys in two chunks (each adds to dq), then queries in two
// (each adds to dk and dv), as context parallelism cuts them.
template <class T>
void check_chunks(Checker& checker) {
  const Case c{1, 70, 70, 4, 2, 64, 0, 0, Documents::packed};
  const int cut = 41;
  Stream& stream = checker.stream;
  const Inputs<T> in(c, 9);
  const auto [out, lse, whole] = run(stream, in, AttentionKernel::plain);
  const Placement& place = in.place;
  Array<T> qkv(stream, in.qkv), dout(stream, in.dout), full_out(stream, out), chunk_out(stream, place.out_size);
  Array<float> full_lse(stream, lse), chunk_lse(stream, lse.size()), rowsum_dO_O(stream, lse.size());
  Array<int> start(stream, in.document_start);
  const Tensor q = place.q.of(qkv), k = place.k.of(qkv), v = place.v.of(qkv), starts = start.tensor({c.B, c.Tq});
  AttentionOptions options = place.options(AttentionKernel::plain);

  Array<T> by_keys(stream, place.size), by_queries(stream, place.size);
  for (int chunk = 0; chunk < 2; ++chunk) {
    const int first = chunk ? cut : 0, count = chunk ? c.Tk - cut : cut;
    const auto part = [&](const Tensor& keys) { return keys.slice(1, first, count); };
    options.document_start = starts;
    options.key_offset = first;
    attention_backward(stream, place.q.of(by_keys), part(place.k.of(by_keys)), part(place.v.of(by_keys)),
                       place.lse(rowsum_dO_O), place.out.of(dout), place.out.of(full_out), place.lse(full_lse), q,
                       part(k), part(v), options, {.dq = chunk == 1});
  }
  options.key_offset = 0;
  for (int chunk = 0; chunk < 2; ++chunk) {
    const int first = chunk ? cut : 0, count = chunk ? c.Tq - cut : cut;
    const auto part = [&](const Tensor& queries) { return queries.slice(1, first, count); };
    const Tensor chunk_of_lse = chunk_lse.tensor({c.B, c.NH, count}), outputs = part(place.out.of(chunk_out));
    options.document_start = part(starts);
    options.query_offset = first;
    attention_forward(stream, outputs, chunk_of_lse, part(q), k, v, options);
    attention_backward(stream, part(place.q.of(by_queries)), place.k.of(by_queries), place.v.of(by_queries),
                       rowsum_dO_O.tensor({c.B, c.NH, count}), part(place.out.of(dout)), outputs, chunk_of_lse, part(q),
                       k, v, options, {.dkv = chunk == 1});
  }
  // Each part and their sum are rounded to T, parts of up to `largest`; and fp32 sums of some 100 terms differ by their
  // order.
  const auto close = [&](const char* what, const std::vector<T>& got, const std::vector<T>& want, double largest) {
    checker.close(format("%s %s", dtype_name(kDType<T>), what), got, to_doubles(want), {int(want.size())},
                  3 * kRounding<T>, 2 * (kRounding<T> + 8 * kUnit) * largest);
  };
  close("keys in two chunks: dq, dk, dv", by_keys.download(), whole, 4);
  close("queries in two chunks: out", chunk_out.download(), out, 1);
  close("queries in two chunks: dq, dk, dv", by_queries.download(), whole, 4);
}

// The pairs of each query and of each key, counted one by one.
struct PairCounts {
  std::vector<double> of_queries, of_keys;

  PairCounts(int Tq, int Tk, int ahead, int window) : of_queries(size_t(Tq)), of_keys(size_t(Tk)) {
    for (int t = 0; t < Tq; ++t)
      for (int j = 0; j < Tk; ++j)
        if (j <= ahead + t && (window == 0 || j > ahead + t - window)) ++of_queries[size_t(t)], ++of_keys[size_t(j)];
  }
  // The most pairs of `rows` that follow each other, divided by the mean.
  static double imbalance(const std::vector<double>& counts, size_t rows) {
    rows = std::min(rows, counts.size());
    double most = 0;
    for (size_t first = 0; first + rows <= counts.size(); ++first)
      most = std::max(most, std::accumulate(&counts[first], &counts[first] + rows, 0.0));
    const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
    return sum > 0 ? most / double(rows) / (sum / double(counts.size())) : 1;
  }
};

void check_pairs(Checker& checker) {
  double worst = 0, imbalance = 0;
  for (int Tq : {1, 5, 9})
    for (int Tk : {1, 4, 9, 12})
      for (int ahead = -14; ahead <= 14; ++ahead)
        for (int window : {0, 1, 3, 20}) {
          const PairCounts counts(Tq, Tk, ahead, window);
          const double pairs = std::accumulate(counts.of_keys.begin(), counts.of_keys.end(), 0.0);
          worst = std::max(worst, std::fabs(pairs - attention_pairs(Tq, Tk, ahead, window)));
          for (const int rows : {1, 2, 4, 16}) {
            // In a window the check compares those shapes in which a block has all pairs that the window allows.
            const bool whole = window == 0 || (ahead == 0 && Tq == Tk);
            const bool whole_queries = ahead + std::min(Tk - ahead, Tq) - rows >= window - 1 && ahead + rows <= Tk;
            const bool whole_keys = rows + window - 1 <= Tq && ahead >= 0 && ahead + rows <= Tk;
            const auto compare = [&](const std::vector<double>& one_by_one, double got) {
              imbalance = std::max(imbalance, std::fabs(PairCounts::imbalance(one_by_one, size_t(rows)) - got));
            };
            if (whole || whole_queries)
              compare(counts.of_queries, attention_imbalance_queries(Tq, Tk, ahead, window, rows));
            if (whole || whole_keys) compare(counts.of_keys, attention_imbalance_keys(Tq, Tk, ahead, window, rows));
          }
        }
  checker.that("attention_pairs", worst == 0, format("differs from counting by %g at most", worst));
  // Quotients of whole numbers, rounded in another order.
  checker.that("attention_imbalance", imbalance < 1e-12, format("differs from counting by %g at most", imbalance));
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
}

void check_refusals(Checker& checker) {
  Stream& stream = checker.stream;
  Array<float> memory(stream, 9 * 4096), rows(stream, 128);
  const auto tensor = [&](int number, TensorShape shape) { return Tensor(memory.data() + number * 4096, shape); };
  struct Arguments {
    Tensor out, lse, q, k, v, dq, dk, dv, rowsum_dO_O, dout;
    AttentionOptions options = {};
  };
  const auto good = [&](int B, int Tq, int Tk, int NH, int NKV, int HD) {
    const Tensor scores(rows.data(), {B, NH, Tq});
    const auto queries = [&](int number) { return tensor(number, {B, Tq, NH, HD}); };
    const auto keys = [&](int number) { return tensor(number, {B, Tk, NKV, HD}); };
    return Arguments{queries(0), scores,  queries(1), keys(2), keys(3),
                     queries(4), keys(5), keys(6),    scores,  queries(7)};
  };
  const auto forward = [&](const Arguments& a) {
    return [&stream, a] { attention_forward(stream, a.out, a.lse, a.q, a.k, a.v, a.options); };
  };
  const auto size = [&](const char* name, const char* expected, int B, int Tq, int Tk, int NH, int NKV, int HD) {
    checker.refused(name, expected, forward(good(B, Tq, Tk, NH, NKV, HD)));
  };
  size("HD = 12", "head size 12", 2, 4, 4, 4, 2, 12);
  size("HD = 8", "head size 8", 2, 4, 4, 4, 2, 8);
  size("HD = 264", "head size 264", 2, 4, 4, 4, 2, 264);
  size("no sequences", "B = 0", 0, 4, 4, 4, 2, 16);
  size("no queries", "Tq = 0", 2, 0, 4, 4, 2, 16);
  size("no keys", "Tk = 0", 2, 4, 0, 4, 2, 16);
  size("no heads", "NH = 0", 2, 4, 4, 0, 2, 16);
  size("no key heads", "NKV = 0", 2, 4, 4, 4, 0, 16);
  size("3 key heads for 4", "NKV = 3", 2, 4, 4, 4, 3, 16);
  size("more rows than int", "too large", 2, 2147483647 / 2 + 1, 4, 4, 2, 16);

  const auto bad = [&](const char* name, const char* expected, const std::function<void(Arguments&)>& spoil) {
    Arguments a = good(2, 4, 4, 4, 2, 16);
    spoil(a);
    checker.refused(name, expected, forward(a));
  };
  bad("a negative offset", "query_offset = -1", [](Arguments& a) { a.options.query_offset = -1; });
  bad("positions beyond int", "positions 0 to 2^31-1", [](Arguments& a) { a.options.key_offset = 2147483647; });
  bad("starts of other queries", "document_start is (2, 3) of int32\n  expected (2, 4)", [](Arguments& a) {
    a.options.document_start = Tensor(nullptr, DType::int32, {2, 3});
  });
  bad("rows that overlap", "k (2, 4, 2, 16) has strides 24 (row)", [](Arguments& a) { a.k.stride[1] = 24; });
  bad("sequences that overlap", "positions overlap", [](Arguments& a) { a.v.stride[0] = 120; });
  bad("an uneven stride", "multiples of 8", [](Arguments& a) { a.q.stride[1] = 68; });
  bad("heads with gaps", "heads of q (2, 4, 4, 16) are 24 elements apart", [](Arguments& a) { a.q.stride[2] = 24; });
  bad("no output", "out is absent", [](Arguments& a) { a.out = {}; });
  bad("no memory", "out is at", [](Arguments& a) { a.out.data = nullptr; });
  bad("no queries at all", "q is absent", [](Arguments& a) { a.q = {}; });
  bad("queries without heads", "q is (8, 64)", [&](Arguments& a) { a.q = tensor(1, {8, 64}); });
  bad("unaligned queries", "multiple of 16", [&](Arguments& a) { a.q.data = memory.data() + 4097; });
  bad("keys of other sequences", "k is (1, 4, 2, 16) of fp32\n  expected (2, 4, 2, 16) of fp32",
      [](Arguments& a) { a.k = a.k.slice(0, 0, 1); });
  bad("fewer values than keys", "v is (2, 3, 2, 16)", [](Arguments& a) { a.v = a.v.slice(1, 0, 3); });
  bad("keys of another type", "k is (2, 4, 2, 16) of bf16", [](Arguments& a) { a.k.type = DType::bf16; });
  bad("a type without kernels", "no kernel for int32",
      [](Arguments& a) { a.out.type = a.q.type = a.k.type = a.v.type = DType::int32; });
  bad("out over q", "out overlaps q", [&](Arguments& a) { a.q.data = memory.data() + 256; });
  bad("no lse", "lse is absent", [](Arguments& a) { a.lse = {}; });
  bad("lse by position", "lse is (2, 4, 3)", [&](Arguments& a) { a.lse = Tensor(rows.data(), {2, 4, 3}); });

  const auto bad_gradient = [&](const char* name, const char* expected, const std::function<void(Arguments&)>& spoil) {
    Arguments a = good(2, 4, 4, 4, 2, 16);
    spoil(a);
    checker.refused(name, expected, [&] {
      attention_backward(stream, a.dq, a.dk, a.dv, a.rowsum_dO_O, a.dout, a.out, a.lse, a.q, a.k, a.v, a.options);
    });
  };
  bad_gradient("dk over v", "dk overlaps v", [](Arguments& a) { a.dk = a.v; });
  bad_gradient("no dk", "dk is absent", [](Arguments& a) { a.dk = {}; });
  bad_gradient("dv for fewer keys", "dv is (2, 3, 2, 16)", [](Arguments& a) { a.dv = a.dv.slice(1, 0, 3); });
  bad_gradient("dq with gaps", "dq has strides 96 (row) and 384 (batch), q has 64 and 256: expected the same",
               [](Arguments& a) { a.dq.stride[1] = 96, a.dq.stride[0] = 384; });
  bad_gradient("no scratch", "rowsum_dO_O is absent", [](Arguments& a) { a.rowsum_dO_O = {}; });
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
      // Fewer or more queries than keys; cached sampling; chunks of a sequence.
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
      // Windows: of one key, smaller than a tile, across tiles, as long as the sequence; with documents; at the end of
      // a cache.
      {1, 70, 70, 4, 2, 32, 0, 0, none, Layout::packed, 1, 1},
      {2, 97, 97, 2, 1, 24, 0, 0, none, Layout::packed, 1, 5},
      {1, 260, 260, 2, 1, 64, 0, 0, none, Layout::packed, 1, 37},
      {1, 129, 129, 4, 1, 128, 0, 0, none, Layout::packed, 1, 129},
      {2, 130, 130, 2, 2, 64, 0, 0, packed, Layout::packed, 1, 20},
      {1, 5, 133, 2, 1, 40, 128, 0, none, Layout::gaps, 1, 50},
      // Softmax far from uniform: scores of about 10, 1e4 and 1e9.
      {1, 130, 130, 4, 2, 32, 0, 0, none, Layout::packed, 3},
      {1, 130, 130, 4, 2, 64, 0, 0, packed, Layout::packed, 3},
      {1, 100, 100, 2, 1, 128, 0, 0, none, Layout::packed, 100},
      {1, 100, 100, 2, 1, 40, 0, 0, none, Layout::packed, 100},
      {1, 67, 67, 2, 1, 64, 0, 0, none, Layout::packed, 3e4},
  };
  for (size_t i = 0; i < cases.size(); i += few_sizes() ? 3 : 1) {
    check_case<float>(checker, orders, cases[i], AttentionKernel::plain);
    check_case<bf16>(checker, orders, cases[i], AttentionKernel::plain);
  }
  check_reference(checker);
  check_chunks<float>(checker);
  check_chunks<bf16>(checker);
  for (const int HD : {16, 40, 64, 128}) {
    check_one_by_one<float>(checker, AttentionKernel::plain, HD);
    check_one_by_one<bf16>(checker, AttentionKernel::plain, HD);
    check_one_by_one<bf16>(checker, AttentionKernel::plain, HD, 40);
  }
  check_choice(checker);
  check_pairs(checker);
  check_refusals(checker);
}

void bench(Bencher& bencher) {
  for (const auto& [model, N] : bencher.workloads())
    for (const int T : bencher.gpu_sizes() ? std::vector<int>{1024, 4096} : std::vector<int>{std::min(N, 256)}) {
      bench_shape<bf16>(bencher, AttentionKernel::plain, N / T, T, model.NH, model.NKV, model.HD);
      if (T <= 1024) bench_shape<float>(bencher, AttentionKernel::plain, N / T, T, model.NH, model.NKV, model.HD);
    }
}
