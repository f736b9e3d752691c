// Softmax and cross-entropy against float64.
//
// Covers: promise 7: classifier: loss, z-loss and gradients of ugly shapes, padding, ignored and impossible labels
#include "llmc/kernels/classifier.h"

#include "dev/kernels/check.h"

namespace {

struct Case {
  int N, V, ld;
  double scale;       // of the logits: 30 makes softmax nearly one-hot
  double z_loss = 0;  // the coefficient
  template <class T>
  Tensor of(const Array<T>& logits) const {
    return logits.tensor({N, ld});
  }
};

template <class T>
Tensor row_of(const Array<T>& values) {
  return values.tensor({int64_t(values.size())});
}

struct Reference {
  std::vector<double> losses, z_losses, dlogits;
  double bound = 0;  // of |dlogits|, as classifier.h has it
};

template <class T>
Reference reference(const std::vector<T>& logits, const std::vector<int>& labels, const Case& c, double label_count) {
  Reference r{std::vector<double>(size_t(c.N)), std::vector<double>(size_t(c.N)),
              std::vector<double>(size_t(c.N) * size_t(c.ld))};
  for (int n = 0; n < c.N; ++n) {
    const T* row = &logits[size_t(n) * size_t(c.ld)];
    if (labels[size_t(n)] == kIgnoredLabel) continue;
    double max = -INFINITY, sum = 0;
    for (int v = 0; v < c.V; ++v) max = std::max(max, to_double(row[v]));
    for (int v = 0; v < c.V; ++v) sum += std::exp(to_double(row[v]) - max);
    const double logsumexp = max + std::log(sum);
    r.losses[size_t(n)] = max - to_double(row[labels[size_t(n)]]) + std::log(sum);
    r.z_losses[size_t(n)] = c.z_loss * logsumexp * logsumexp;
    r.bound = std::max(r.bound, (1 + 2 * c.z_loss * std::abs(logsumexp)) / label_count);
    for (int v = 0; v < c.V; ++v) {
      const double p = std::exp(to_double(row[v]) - max) / sum;
      r.dlogits[size_t(n) * size_t(c.ld) + size_t(v)] =
          (p - (v == labels[size_t(n)]) + 2 * c.z_loss * logsumexp * p) / label_count;
    }
  }
  return r;
}

StepState state_with(int64_t label_count) {
  StepState state{};
  state.label_count = label_count;
  return state;
}

template <class T>
std::vector<T> random_logits(Generator& generator, const Case& c) {
  std::vector<T> logits(size_t(c.N) * size_t(c.ld), from_float<T>(NAN));  // padding is NaN
  for (int n = 0; n < c.N; ++n)
    for (int v = 0; v < c.V; ++v)
      logits[size_t(n) * size_t(c.ld) + size_t(v)] = from_float<T>(float(c.scale * generator.normal()));
  return logits;
}

// Returns "" or " z-loss=0.01".
std::string z_loss_text(const Case& c) { return c.z_loss > 0 ? format(" z-loss=%g", c.z_loss) : ""; }

// The error of logsumexp is that of a loss, 4e-6 at most. Its square has 2 |logsumexp| times that.
void check_z_losses(Checker& checker, const std::string& name, const Case& c, const std::vector<float>& got,
                    const Reference& want) {
  const double largest = *std::max_element(want.z_losses.begin(), want.z_losses.end());
  checker.close(name + " z-losses", got, want.z_losses, {c.N}, 1e-6, 2 * std::sqrt(largest * c.z_loss) * 4e-6);
}

template <class T>
void check_case(Checker& checker, const Case& c) {
  Stream& stream = checker.stream;
  const std::string name =
      format("%s N=%d V=%d ld=%d scale=%g%s", dtype_name(kDType<T>), c.N, c.V, c.ld, c.scale, z_loss_text(c).c_str());
  Generator generator(uint64_t(c.N * 131 + c.V));
  const std::vector<T> values = random_logits<T>(generator, c);
  std::vector<int> labels_host(static_cast<size_t>(c.N));
  for (int& label : labels_host) label = generator.integer(0, 4) ? generator.integer(0, c.V - 1) : kIgnoredLabel;
  labels_host[0] = c.V - 1;
  const int64_t label_count = 37;  // of the step, so unrelated to this call's labels
  const Reference want = reference(values, labels_host, c, double(label_count));

  Array<T> logits(stream, values);
  const Array<int> labels(stream, labels_host);
  const Array<StepState> state(stream, {state_with(label_count)});
  Array<float> losses(stream, size_t(c.N)), losses_forward(stream, size_t(c.N)), z_losses(stream, size_t(c.N));
  const ZLoss z_loss{float(c.z_loss), c.z_loss > 0 ? row_of(z_losses) : Tensor()};
  classifier_forward(stream, row_of(losses_forward), c.of(logits), row_of(labels), c.V);
  checker.same_bits(name + ": forward leaves the logits", logits.download(), values);
  classifier_forward_backward(stream, c.of(logits), row_of(losses), row_of(labels), state.data(), c.V, z_loss);

  // Sums of V positive terms in fp32, each exp good to 2 units in the last place; the logarithm makes a relative error
  // of the sum an absolute one. max - logit rounds at the size of the logits.
  checker.close(name + " losses", losses.download(), want.losses, {c.N}, 1e-6, 4e-6);
  checker.same_bits(name + ": forward alone", losses_forward.download(), losses.download());
  if (c.z_loss > 0) check_z_losses(checker, name, c, z_losses.download(), want);
  // exp, the sum and two products: some units of fp32's last place, then one rounding to T. p - 1 of the label's column
  // rounds at the size of 1, or of the bound.
  const double rounding = sizeof(T) == 2 ? 0.5 * epsilon_of<T>() : 0;
  const std::vector<T> dlogits = logits.download();
  checker.close(name + " dlogits", dlogits, want.dlogits, {c.N, c.ld}, rounding + 1e-5,
                1e-6 * want.bound * (c.scale > 10 ? 1 : 0.2));
  double largest = 0;
  for (const T x : dlogits) largest = std::max(largest, std::abs(to_double(x)));
  checker.that(name + " largest dlogits", largest <= want.bound * (1 + rounding + 1e-5),
               format("%g, bound %g", largest, want.bound));

  logits.upload(values);
  classifier_forward_backward(stream, c.of(logits), row_of(losses), row_of(labels), state.data(), c.V, z_loss);
  checker.same_bits(name + ": twice", logits.download(), dlogits);
}

// The columns shared out over ranks, as tensor parallelism does: the same losses and gradients, and the same bits of
// losses for each rank.
template <class T>
void check_parts(Checker& checker, const Case& c, int ranks) {
  Stream& stream = checker.stream;
  const std::string name = format("%s N=%d V=%d over %d ranks scale=%g%s", dtype_name(kDType<T>), c.N, c.V, ranks,
                                  c.scale, z_loss_text(c).c_str());
  Generator generator(uint64_t(c.N * 137 + c.V));
  const std::vector<T> values = random_logits<T>(generator, c);
  std::vector<int> labels_host(static_cast<size_t>(c.N));
  for (int& label : labels_host) label = generator.integer(0, 4) ? generator.integer(0, c.V - 1) : kIgnoredLabel;
  labels_host[0] = c.V - 1;
  const int64_t label_count = 37;
  const Reference want = reference(values, labels_host, c, double(label_count));
  const Array<int> labels(stream, labels_host);
  const Array<StepState> state(stream, {state_with(label_count)});
  const size_t N = size_t(c.N);
  const int most = (c.V + ranks - 1) / ranks, ld = most + c.ld - c.V;
  Array<SoftmaxPart> parts(stream, size_t(ranks) * N);
  std::vector<Array<T>> logits;
  std::vector<VocabularyPart> places;
  for (int rank = 0; rank < ranks; ++rank) {
    const VocabularyPart part{rank * most, std::min(most, c.V - rank * most), c.V};
    std::vector<T> own(N * size_t(ld), from_float<T>(NAN));
    for (size_t n = 0; n < N; ++n)
      for (int v = 0; v < part.V; ++v)
        own[n * size_t(ld) + size_t(v)] = values[n * size_t(c.ld) + size_t(part.first + v)];
    logits.emplace_back(stream, own), places.push_back(part);
    classifier_part(stream, parts.data() + size_t(rank) * N, logits.back().tensor({c.N, ld}), row_of(labels), part);
  }
  Array<float> losses(stream, N), z_losses(stream, N);
  classifier_losses(stream, row_of(losses), parts.data(), ranks, row_of(labels), c.V,
                    {float(c.z_loss), c.z_loss > 0 ? row_of(z_losses) : Tensor()});
  if (c.z_loss > 0) check_z_losses(checker, name, c, z_losses.download(), want);
  checker.close(name + " losses", losses.download(), want.losses, {c.N}, 1e-6, 4e-6);  // as of one rank
  const double rounding = sizeof(T) == 2 ? 0.5 * epsilon_of<T>() : 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const VocabularyPart part = places[size_t(rank)];
    classifier_join(stream, logits[size_t(rank)].tensor({c.N, ld}), parts.data(), ranks, row_of(labels), state.data(),
                    part, float(c.z_loss));
    std::vector<double> wanted(N * size_t(ld), 0.0);
    for (size_t n = 0; n < N; ++n)
      for (int v = 0; v < part.V; ++v)
        wanted[n * size_t(ld) + size_t(v)] = want.dlogits[n * size_t(c.ld) + size_t(part.first + v)];
    checker.close(name + format(" dlogits of rank %d", rank), logits[size_t(rank)].download(), wanted, {c.N, ld},
                  rounding + 1e-5, 1e-6 * want.bound * (c.scale > 10 ? 1 : 0.2));
  }
}

// Labels that no rank has, and a NaN among the logits of one of them.
void check_impossible_parts(Checker& checker) {
  Stream& stream = checker.stream;
  const int V = 20, half = 10;
  const std::vector<int> labels_host = {V, -1, 2147483647, -101, 5, 15, kIgnoredLabel};
  const int N = int(labels_host.size());
  std::vector<float> values(size_t(N * half), 1.0f), others = values;
  others[size_t(4 * half + 3)] = NAN;
  Array<float> low(stream, values), high(stream, others), losses(stream, size_t(N));
  Array<SoftmaxPart> parts(stream, size_t(2 * N));
  const Array<int> labels(stream, labels_host);
  const Array<StepState> state(stream, {state_with(1)});
  classifier_part(stream, parts.data(), low.tensor({N, half}), row_of(labels), {0, half, V});
  classifier_part(stream, parts.data() + N, high.tensor({N, half}), row_of(labels), {half, half, V});
  classifier_losses(stream, row_of(losses), parts.data(), 2, row_of(labels), V);
  classifier_join(stream, low.tensor({N, half}), parts.data(), 2, row_of(labels), state.data(), {0, half, V});
  const std::vector<float> got = losses.download(), gradients = low.download();
  int bad = 0;
  for (int n = 0; n < N; ++n) {
    const bool nan = n < 5;
    bad += std::isnan(got[size_t(n)]) != nan;
    for (int v = 0; v < half; ++v) bad += std::isnan(gradients[size_t(n * half + v)]) != nan;
  }
  checker.that("impossible labels and a NaN over 2 ranks", bad == 0, format("%d values are wrong", bad));
  checker.that("an ignored label over 2 ranks", got[6] == 0 && gradients[size_t(6 * half)] == 0, "");
  checker.refused("columns beyond the vocabulary", "11 columns from 10 of 20", [&] {
    classifier_part(stream, parts.data(), low.tensor({N, half}), row_of(labels), {half, half + 1, V});
  });
}

// Rows with one huge logit, so that exp of all others is 0 in fp32, and rows without one.
// `V`: a multiple of 4; few columns, which a warp reads, or more than a block reads at once.
void check_extremes(Checker& checker, int V) {
  Stream& stream = checker.stream;
  const Case c{4, V, V + 4, 1};
  std::vector<float> values(size_t(c.N * c.ld), 0.0f);
  for (int v = 0; v < c.V; ++v) {
    values[size_t(v)] = v == 57 ? 3e4f : -3e4f;
    values[size_t(c.ld + v)] = 1e30f;
    values[size_t(2 * c.ld + v)] = v == 99 ? -INFINITY : -200.0f;
    values[size_t(3 * c.ld + v)] = float(v) - 1000;
  }
  const std::vector<int> labels_host = {57, 3, 0, 99};
  Array<float> logits(stream, values), losses(stream, 4);
  const Array<int> labels(stream, labels_host);
  const Array<StepState> state(stream, {state_with(1)});
  const Reference want = reference(values, labels_host, c, 1);
  classifier_forward_backward(stream, c.of(logits), row_of(losses), row_of(labels), state.data(), c.V);
  checker.close(format("extremes losses, V=%d", V), losses.download(), want.losses, {c.N}, 1e-6, 4e-6);
  checker.close(format("extremes dlogits, V=%d", V), logits.download(), want.dlogits, {c.N, c.ld}, 1e-5, 1e-6);
}

void check_impossible(Checker& checker) {
  Stream& stream = checker.stream;
  for (const int V : {100, 5000}) {
    const std::vector<int> labels_host = {V, -1, 2147483647, -101, 5};
    const int N = int(labels_host.size());
    Generator generator(7);
    Array<bf16> logits(stream, random_normal<bf16>(generator, size_t(N) * size_t(V)));
    const Array<int> labels(stream, labels_host);
    const Array<StepState> state(stream, {state_with(1)});
    Array<float> losses(stream, size_t(N));
    classifier_forward_backward(stream, logits.tensor({N, V}), row_of(losses), row_of(labels), state.data(), V);
    const std::vector<float> got = losses.download();
    const std::vector<bf16> gradients = logits.download();
    int bad = 0;
    for (int n = 0; n < N; ++n) {
      const bool nan = n < 4;
      bad += std::isnan(got[size_t(n)]) != nan;
      for (int v = 0; v < V; ++v) bad += std::isnan(to_float(gradients[size_t(n) * size_t(V) + size_t(v)])) != nan;
    }
    checker.that(format("impossible labels, V=%d", V), bad == 0, format("%d values are wrong", bad));
  }
  // One NaN among the logits is a NaN of its row, wherever it stands.
  for (const int V : {40, 4100}) {
    Generator generator(8);
    const int N = std::min(V, 64);
    std::vector<float> values = random_normal<float>(generator, size_t(N) * size_t(V));
    const std::vector<int> zeros(static_cast<size_t>(N));
    for (int n = 0; n < N; ++n) values[size_t(n) * size_t(V) + size_t(V - 1 - n)] = NAN;
    const Array<float> logits(stream, values);
    const Array<int> labels(stream, zeros);
    Array<float> losses(stream, size_t(N));
    classifier_forward(stream, row_of(losses), logits.tensor({N, V}), row_of(labels), V);
    int missed = 0;
    for (const float loss : losses.download()) missed += !std::isnan(loss);
    checker.that(format("a NaN shows, V=%d", V), missed == 0, format("%d of %d rows hide it", missed, N));
  }
}

void check_sum(Checker& checker) {
  Stream& stream = checker.stream;
  for (const int N : {1, 2, 31, 255, 256, 257, 4099}) {
    Generator generator(static_cast<uint64_t>(N));
    const std::vector<float> values = random_normal<float>(generator, size_t(N), 1, 3);
    StepState start = state_with(5);
    start.loss_sum = 1000;
    Array<StepState> state(stream, {start});
    const Array<float> losses(stream, values);
    sum_losses(stream, &state.data()->loss_sum, row_of(losses));
    double want = 1000;
    for (const float v : values) want += double(v);
    const StepState after = state.download()[0];
    // float64 sums of fp32 numbers, in two orders: N roundings of 1e-16 each.
    checker.close(format("sum_losses N=%d", N), std::vector<double>{after.loss_sum}, {want}, {1}, 1e-16 * (N + 2), 0);
    checker.that(format("sum_losses N=%d leaves the rest", N), after.label_count == 5 && after.z_loss_sum == 0, "");
  }
}

// Labels of which every fifth is ignored, of sources in no order.
void check_sum_by_source(Checker& checker) {
  Stream& stream = checker.stream;
  for (const int S : {1, 2, 5})
    for (const int N : {1, 31, 255, 256, 257, 4099}) {
      Generator generator(uint64_t(N * 8 + S));
      const std::vector<float> values = random_normal<float>(generator, size_t(N), 1, 3);
      std::vector<int> labels, sources;
      std::vector<double> want(size_t(2 * S), 1000);  // += : the sums begin with 1000
      for (int n = 0; n < N; ++n) {
        labels.push_back(n % 5 ? n : kIgnoredLabel), sources.push_back(n * 7 % 11 % S);
        if (n % 5 == 0) continue;
        want[size_t(2 * sources.back())] += double(values[size_t(n)]), want[size_t(2 * sources.back() + 1)] += 1;
      }
      Array<double> sums(stream, std::vector<double>(size_t(2 * S), 1000));
      const Array<float> losses(stream, values);
      const Array<int> all_labels(stream, labels), all_sources(stream, sources);
      sum_losses_by_source(stream, sums.tensor({S, 2}), row_of(losses), row_of(all_labels), row_of(all_sources));
      checker.close(format("sum_losses_by_source S=%d N=%d", S, N), sums.download(), want, {2 * S}, 1e-16 * (N + 1002),
                    0);
    }
  Array<double> sums(stream, 4);
  Array<float> losses(stream, 3);
  const Array<int> ids(stream, std::vector<int>(3, 0));
  const auto refused = [&](const char* name, const char* expected, const Tensor& sum, const Tensor& loss,
                           const Tensor& label, const Tensor& source) {
    checker.refused(name, expected, [&] { sum_losses_by_source(stream, sum, loss, label, source); });
  };
  const Tensor all = ids.tensor({3});
  refused("no losses of sources", "of 0 losses", sums.tensor({2, 2}), losses.tensor({0}), all, all);
  refused("sums of another shape", "sums is (4)", sums.tensor({4}), row_of(losses), all, all);
  refused("fewer sources than losses", "sources is (2)", sums.tensor({2, 2}), row_of(losses), all, ids.tensor({2}));
}

}  // namespace

void check(Checker& checker) {
  const std::vector<Case> cases = {{1, 1, 1, 1},           {2, 2, 8, 1},
                                   {3, 7, 7, 1},           {5, 8, 8, 1},
                                   {4, 9, 16, 3},          {3, 31, 33, 1},
                                   {65, 97, 97, 1},        {33, 97, 104, 30},
                                   {127, 256, 256, 1},     {7, 255, 256, 1},
                                   {9, 257, 264, 3},       {2, 1000, 1001, 1},
                                   {2, 4095, 4096, 1},     {3, 4096, 4096, 1},
                                   {2, 4099, 4099, 30},    {2, 5003, 5008, 1},
                                   {1, 50257, 50304, 3},   {2, 128256, 128256, 1},
                                   {65, 97, 97, 1, 0.1},   {33, 97, 104, 30, 0.01},
                                   {7, 255, 256, 1, 1e-4}, {2, 5003, 5008, 3, 0.05}};
  for (const Case& c : cases) {
    check_case<float>(checker, c);
    check_case<bf16>(checker, c);
  }
  // Long rows with more threads, as on a GPU.
  CpuBackend backend = CpuBackend::from_environment();
  backend.wide_rows = true;
  Device wide_device(0, backend);
  Checker wide_checker(wide_device);
  for (const Case& c :
       std::vector<Case>{{3, 4096, 4096, 1}, {2, 5003, 5008, 1}, {2, 40000, 40001, 1}, {2, 128256, 128256, 1}}) {
    check_case<float>(wide_checker, c);
    check_case<bf16>(wide_checker, c);
  }
  checker.all_of("long rows with 1024 threads each", wide_checker);
  for (const auto& [c, ranks] : std::vector<std::pair<Case, int>>{{{3, 2, 8, 1}, 2},
                                                                  {{5, 97, 97, 1}, 4},
                                                                  {{9, 257, 264, 30}, 3},
                                                                  {{33, 1000, 1001, 3}, 8},
                                                                  {{2, 20011, 20011, 1}, 2},
                                                                  {{1, 128256, 128256, 1}, 8},
                                                                  {{5, 97, 97, 1, 0.1}, 4},
                                                                  {{9, 257, 264, 30, 0.01}, 3},
                                                                  {{2, 20011, 20011, 1, 1e-4}, 2}}) {
    check_parts<float>(checker, c, ranks);
    check_parts<bf16>(checker, c, ranks);
  }
  check_impossible_parts(checker);
  for (const int V : {100, 40004}) check_extremes(checker, V);
  check_impossible(checker);
  check_sum(checker);
  check_sum_by_source(checker);

  Stream& stream = checker.stream;
  Array<float> logits(stream, 80), losses(stream, 8);
  const Array<int> labels(stream, std::vector<int>(8, 0));
  const Array<StepState> state(stream, {state_with(1)});
  Array<SoftmaxPart> parts(stream, 8);
  const auto refused = [&](const char* name, const char* expected, const Tensor& loss, const Tensor& x,
                           const Tensor& label, int V) {
    checker.refused(name, expected, [&] { classifier_forward(stream, loss, x, label, V); });
    checker.refused(name, expected, [&] { classifier_forward_backward(stream, x, loss, label, state.data(), V); });
  };
  const Tensor loss = losses.tensor({1}), label = labels.tensor({1}), x = logits.tensor({1, 10});
  refused("no rows", "logits is (0, 10)", losses.tensor({0}), logits.tensor({0, 10}), labels.tensor({0}), 10);
  refused("a stride below V", "logits is (1, 9), of which 10 columns", loss, logits.tensor({1, 9}), label, 10);
  refused("rows with gaps", "logits (2, 8) is not contiguous", losses.tensor({2}), logits.tensor({2, 10}).columns(0, 8),
          labels.tensor({2}), 8);
  refused("misaligned logits", "not 16-byte aligned", loss, Tensor(logits.data() + 1, {1, 8}), label, 8);
  refused("a type without kernels", "no kernel for int32", loss, labels.tensor({1, 7}), label, 7);
  refused("labels in fp32", "labels is (1) of fp32\n  expected (1) of int32", loss, x, loss, 10);
  refused("more losses than rows", "losses is (2) of fp32\n  expected (1) of fp32", losses.tensor({2}), x, label, 10);
  checker.refused("no columns", "0 columns from 0 of 10", [&] {
    classifier_part(stream, parts.data(), x, label, {0, 0, 10});
  });
  checker.refused("a stride below the part", "logits is (1, 10), of which 11 columns", [&] {
    classifier_part(stream, parts.data(), x, label, {0, 11, 20});
  });
  checker.refused("no ranks", "0 ranks", [&] {
    classifier_join(stream, x, parts.data(), 0, label, state.data(), {0, 10, 10});
  });
  checker.refused("other labels than losses", "labels is (2)",
                  [&] { classifier_losses(stream, loss, parts.data(), 1, labels.tensor({2}), 10); });
  checker.refused("a z-loss without a coefficient", "z-losses (1) with the coefficient 0", [&] {
    classifier_forward_backward(stream, x, loss, label, state.data(), 10, {0, loss});
  });
  checker.refused("a z-loss without its losses", "z-losses absent with the coefficient 0.5", [&] {
    classifier_losses(stream, loss, parts.data(), 1, label, 10, {0.5f, {}});
  });
  checker.refused("more z-losses than rows", "z-losses is (2)", [&] {
    classifier_forward_backward(stream, x, loss, label, state.data(), 10, {0.5f, losses.tensor({2})});
  });
  checker.refused("nothing to sum", "0 losses", [&] { sum_losses(stream, nullptr, losses.tensor({0})); });
}

namespace {

template <class T>
void bench_case(Bencher& bencher, int N, int V) {
  Stream& stream = bencher.stream;
  Generator generator(1);
  Array<T> logits(stream, repeated_normal<T>(size_t(N) * size_t(V)));
  std::vector<int> labels_host(static_cast<size_t>(N));
  for (int& label : labels_host) label = generator.integer(0, V - 1);
  const Array<int> labels(stream, labels_host);
  const Array<StepState> state(stream, {state_with(N)});
  Array<float> losses(stream, size_t(N));
  const std::string shape = format("%s N=%d V=%d", dtype_name(kDType<T>), N, V);
  const double bytes = double(N) * V * sizeof(T);
  bencher.time("classifier_forward " + shape, bytes, 4.0 * N * V, [&] {
    classifier_forward(stream, row_of(losses), logits.tensor({N, V}), row_of(labels), V);
  });
  bencher.time("classifier_forward_backward " + shape, 2 * bytes, 8.0 * N * V, [&] {
    classifier_forward_backward(stream, logits.tensor({N, V}), row_of(losses), row_of(labels), state.data(), V);
  });
}

}  // namespace

void bench(Bencher& bencher) {
  for (const auto& [model, N] : bencher.workloads()) {
    bench_case<bf16>(bencher, N, model.V);
    bench_case<float>(bencher, N, model.V);
  }
}
