// The checks of attention on tensor cores, for each of its kernels: lengths around the edges of tiles, offsets,
// documents, groups, layouts, and a comparison with the plain kernel.
//
// LLMC_SIZES=every: at 24 lengths instead of 5; LLMC_SIZES=few: at 2 (dev/kernels/sizes.h).
#pragma once

#include "dev/kernels/attention_cases.h"
#include "dev/kernels/sizes.h"

// Both round p and ds where the other does not: apart by what either may be from the reference.
inline void check_against_plain(Checker& checker, const Case& c, AttentionKernel kernel) {
  const Inputs<bf16> in(c, 77);
  const Placement& place = in.place;
  const auto [out, lse, dqkv] = run(checker.stream, in, kernel);
  const auto [plain_out, plain_lse, plain_dqkv] = run(checker.stream, in, AttentionKernel::plain);
  const Doubles exact{place.q.gather(in.qkv), place.k.gather(in.qkv), place.v.gather(in.qkv), place.out.gather(in.dout),
                      place.out.gather(plain_out)};
  const auto limit = ReferenceAttention(place, in.document_start, exact, kRounding<bf16>).result().limit;
  const std::string name = name_of(c, DType::bf16) + ", against the plain kernel: ";
  const auto close = [&](const char* what, const View& view, const std::vector<bf16>& got,
                         const std::vector<bf16>& want, double of_one) {
    checker.close(name + what, picked(view, got), view.gather(want), {view.B, view.T, view.heads, view.HD},
                  2 * kRounding<bf16>, 2 * of_one);
  };
  close("out", place.out, out, plain_out, limit.out);
  // The outputs differ by their roundings, which move rowsum_dO_O: by that of a head's dout and out.
  const double from_rowsum = 2 * kRounding<bf16> * std::sqrt(double(c.HD));
  close("dq", place.q, dqkv, plain_dqkv, limit.dq + from_rowsum);
  close("dk", place.k, dqkv, plain_dqkv, limit.dk + from_rowsum);
  close("dv", place.v, dqkv, plain_dqkv, limit.dv);
}

// Lengths around the edges of fragments (8, 16), warps (32) and tiles (64, 128).
inline std::vector<int> lengths(const std::string& which) {
  if (which == "few") return {17, 65};
  if (which != "every") return {1, 17, 64, 129, 257};
  return {1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 255, 256, 257, 511, 777, 1023, 1024, 1025, 1030};
}

// Returns the cases of a length: alone, with more keys or queries than that, with offsets, with documents; the groups
// in turn.
inline std::vector<Case> cases_of(int T, int number) {
  const Documents none = Documents::none, packed = Documents::packed, arbitrary = Documents::arbitrary;
  struct Heads {
    int NH, NKV;
  };
  const Heads heads[] = {{2, 2}, {4, 1}, {7, 1}, {8, 1}};  // groups of 1, 4, 7 and 8
  const auto [NH, NKV] = heads[number % 4];
  const auto [NH2, NKV2] = heads[(number + 2) % 4];
  const int HD = number % 2 ? 64 : 128, other_HD = 192 - HD;
  return {
      {1, T, T, NH, NKV, HD, 0, 0, none, Layout::packed},
      {T < 100 ? 2 : 1, T, T, NH2, NKV2, other_HD, 0, 0, packed, Layout::packed},
      {1, T, T + 45, NH2, NKV2, HD, 45, 0, number % 3 ? none : packed, Layout::gaps},
      {1, (T + 1) / 2, T, NH, NKV, other_HD, T / 2 + 3, 3, number % 3 ? packed : arbitrary, Layout::sequences_inside},
      {1, T, (T + 1) / 2, 2, 1, HD, 0, T / 8, none, Layout::separate},
      {1, T, T, NH, NKV, HD, 0, 0, none, Layout::packed, 1, number % 2 ? 37 : T / 2 + 1},
      {1, T, T + 45, NH2, NKV2, other_HD, 45, 0, number % 3 ? packed : none, Layout::gaps, 1, number % 2 ? 130 : 5},
  };
}

// Scores of another size, queries that see nothing, none that sees anything.
inline std::vector<Case> odd_cases() {
  return {
      {1, 200, 200, 4, 1, 128, 0, 0, Documents::none, Layout::packed},
      {1, 130, 130, 4, 2, 64, 0, 0, Documents::packed, Layout::packed, 3},  // scores of about 10
      {1, 100, 100, 2, 1, 128, 0, 0, Documents::none, Layout::packed, 100},
      {2, 50, 60, 4, 2, 64, 100, 120, Documents::none, Layout::gaps},  // the first 20 queries see nothing
      {1, 10, 20, 2, 1, 128, 5, 40},                                   // no query sees anything
  };
}

// False: only a few sizes were asked for, and the rest is to be left out.
inline bool check_sizes(Checker& checker, OtherSchedules& orders, AttentionKernel kernel) {
  int number = 0;
  for (const int T : lengths(asked_sizes())) {
    for (const Case& c : cases_of(T, number)) check_case<bf16>(checker, orders, c, kernel);
    ++number;
  }
  return !few_sizes();
}

// So many tiles under great maxima that an error with which each of them multiplied the sums so far would be seen.
inline void check_many_tiles(Checker& checker, AttentionKernel kernel, int HD) {
  const Case c{1, 3, 32768, 4, 1, HD, 32765, 0, Documents::none, Layout::separate, 3};
  const Inputs<bf16> in(c, 5);
  const Placement& place = in.place;
  Stream& stream = checker.stream;
  const Array<bf16> qkv(stream, in.qkv);
  Array<bf16> out(stream, place.out_size);
  Array<float> lse(stream, size_t(c.NH) * c.Tq);
  attention_forward(stream, place.out.of(out), place.lse(lse), place.q.of(qkv), place.k.of(qkv), place.v.of(qkv),
                    place.options(kernel));
  const Doubles exact{place.q.gather(in.qkv), place.k.gather(in.qkv), place.v.gather(in.qkv), {}, {}};
  const Reference want = ReferenceAttention(place, in.document_start, exact, kRounding<bf16>).result();
  const std::string name = name_of(c, DType::bf16);
  checker.close(name + " lse", lse.download(), want.lse, {c.B, c.NH, c.Tq}, kUnit, want.limit.lse);
  checker.close(name + " out", picked(place.out, out.download()), want.out, {c.B, c.Tq, c.NH, c.HD}, kRounding<bf16>,
                want.limit.out);
}

// A NaN in one query shows in its output and in its log-sum-exp, and in no other query's.
inline void check_nan(Checker& checker, AttentionKernel kernel, int HD) {
  const Case c{1, 70, 70, 2, 1, HD, 0, 0, Documents::none, Layout::packed};
  constexpr int t = 37, head = 1;
  Inputs<bf16> in(c, 9);
  const Placement& place = in.place;
  in.qkv[place.q.at(0, t, head, 5)] = from_float<bf16>(NAN);
  Stream& stream = checker.stream;
  const Array<bf16> qkv(stream, in.qkv);
  Array<bf16> result(stream, place.out_size);
  Array<float> lse_of_rows(stream, size_t(c.NH) * c.Tq);
  attention_forward(stream, place.out.of(result), place.lse(lse_of_rows), place.q.of(qkv), place.k.of(qkv),
                    place.v.of(qkv), place.options(kernel));
  const std::vector<bf16> out = result.download();
  const std::vector<float> lse = lse_of_rows.download();
  int wrong = 0;
  for (int h = 0; h < c.NH; ++h)
    for (int i = 0; i < c.Tq; ++i) {
      const bool expected = h == head && i == t;
      wrong += std::isnan(lse[size_t(h * c.Tq + i)]) != expected;
      for (int d = 0; d < HD; ++d) wrong += std::isnan(to_float(out[place.out.at(0, i, h, d)])) != expected;
    }
  checker.that(name_of(c, DType::bf16) + " a NaN in one query", wrong == 0,
               format("%d numbers of out and lse are NaN, or not, where they should not be", wrong));
}

inline void check_against_others(Checker& checker, AttentionKernel kernel) {
  for (const int HD : {64, 128}) check_nan(checker, kernel, HD);
  for (const int HD : {64, 128}) check_many_tiles(checker, kernel, HD);
  for (const int HD : {64, 128}) {
    check_one_by_one<bf16>(checker, kernel, HD);
    // Hopper's tiles begin at the first key that any query of a block sees, so there a query alone has other tiles.
    if (kernel == AttentionKernel::mma) check_one_by_one<bf16>(checker, kernel, HD, 40);
  }
  check_against_plain(checker, {1, 257, 257, 8, 2, 128, 0, 0, Documents::packed, Layout::packed}, kernel);
  check_against_plain(checker, {2, 130, 130, 4, 4, 64, 0, 0, Documents::none, Layout::packed}, kernel);
}

inline void bench_sizes(Bencher& bencher, AttentionKernel kernel) {
  for (const auto& [model, N] : bencher.workloads())
    for (const int T : bencher.gpu_sizes() ? std::vector<int>{1024, 4096, 8192} : std::vector<int>{std::min(N, 256)})
      if (model.HD == 64 || model.HD == 128)
        bench_shape<bf16>(bencher, kernel, N / T, T, model.NH, model.NKV, model.HD);
}
