// The global norm against float64 sums.
//
// Covers: promise 7: global_norm: norms of ugly sizes and several buffers, clip/norm and not clip/norm², nothing
// hidden; which steps are held; squares of bf16 numbers
#include "llmc/kernels/global_norm.h"

#include "dev/kernels/check.h"

namespace {

StepState state_with(float grad_clip) {
  StepState state{};
  state.grad_clip = grad_clip;
  state.label_count = 77;
  return state;
}

constexpr AdamWConstants kConstants = {0.9f, 0.95f, 1e-8f};

// Finishes with `progress`, by default that of a training's first step.
StepState finish(Stream& stream, const StepState& before, const Tensor& partials, UpdateProgress* progress = nullptr,
                 Array<float>* amax = nullptr) {
  const Array<StepState> state(stream, {before});
  const Array<UpdateProgress> on_device(stream, {progress ? *progress : UpdateProgress{}});
  UpdateStart start{on_device.data(), kConstants};
  if (amax) start.amax = {amax->data(), amax->size()};
  global_norm_finish(stream, state.data(), partials, start);
  if (progress) *progress = on_device.download()[0];
  return state.download()[0];
}

// The norm of these buffers as the optimizer takes it.
StepState norm_of(Stream& stream, const std::vector<std::vector<float>>& buffers, float grad_clip,
                  std::vector<double>* partials_out = nullptr) {
  size_t count = 0;
  int64_t at = 0;
  for (const auto& buffer : buffers) count += global_norm_partials(buffer.size());
  Array<double> partials(stream, count);
  for (const auto& buffer : buffers) {
    const Array<float> gradients(stream, buffer);
    const int64_t own = int64_t(global_norm_partials(buffer.size()));
    global_norm_squares(stream, partials.tensor().columns(at, own), gradients.tensor());
    at += own;
  }
  if (partials_out) *partials_out = partials.download();
  return finish(stream, state_with(grad_clip), partials.tensor());
}

double squares_of(const std::vector<std::vector<float>>& buffers) {
  long double sum = 0;
  for (const auto& buffer : buffers)
    for (const float x : buffer) sum += (long double)x * (long double)x;
  return double(sum);
}

void check_norm(Checker& checker, const std::string& name, const std::vector<std::vector<float>>& buffers) {
  Stream& stream = checker.stream;
  std::vector<double> partials, again;
  const StepState got = norm_of(stream, buffers, 0.5f, &partials);
  const double squares = squares_of(buffers), norm = std::sqrt(squares);
  // fp64 sums are exact to 1e-15 or so, then one rounding to fp32, and a division of fp32 numbers.
  checker.close(name + " norm", std::vector<float>{got.grad_norm}, {norm}, {1}, 6e-8, 0);
  checker.close(name + " clip factor", std::vector<float>{got.clip_factor}, {norm > 0.5 ? 0.5 / norm : 1}, {1}, 2e-7,
                0);
  checker.that(name + " leaves the rest", got.label_count == 77 && got.grad_clip == 0.5f && got.loss_sum == 0, "");
  norm_of(stream, buffers, 0.5f, &again);
  checker.same_bits(name + " twice", again, partials);

  // The sum over all of them first, as ranks do it: the same bits.
  const Array<double> on_device(stream, partials);
  Array<double> total(stream, 1);
  global_norm_sum(stream, total.tensor(), on_device.tensor());
  const StepState state = finish(stream, state_with(0.5f), total.tensor());
  checker.close(name + " total", total.download(), {squares}, {1}, 1e-13, 0);
  checker.same_bits(name + " by its total", std::vector<float>{state.clip_factor}, {got.clip_factor});
}

void check_factor(Checker& checker, const std::string& name, float value, float grad_clip, float norm, float factor) {
  const StepState got = norm_of(checker.stream, {{0, value, 0}}, grad_clip);
  const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  checker.that(name, same(got.grad_norm, norm) && same(got.clip_factor, factor),
               format("norm %g, factor %g", double(got.grad_norm), double(got.clip_factor)));
}

// The squares of bf16 numbers have the bits of those of the same numbers in fp32.
void check_narrow(Checker& checker, const std::vector<float>& values) {
  Stream& stream = checker.stream;
  std::vector<bf16> narrow;
  std::vector<float> wide;
  for (const float x : values) narrow.push_back(from_float<bf16>(x)), wide.push_back(to_float(narrow.back()));
  const Array<bf16> numbers(stream, narrow);
  const Array<float> same(stream, wide);
  const Array<double> partials(stream, global_norm_partials(values.size())), want(stream, partials.size());
  global_norm_squares(stream, partials.tensor(), numbers.tensor());
  global_norm_squares(stream, want.tensor(), same.tensor());
  const std::string name = format("n=%zu in bf16", values.size());
  checker.same_bits(name, partials.download(), want.download());
  const Array<double> total(stream, 1);
  global_norm_sum(stream, total.tensor(), partials.tensor());
  checker.close(name + " sum", total.download(), {squares_of({wide})}, {1}, 1e-13, 0);
}

// A step of each kind, and those after it: what is held, how many updates were made, what becomes of the amaxes.
void check_held(Checker& checker) {
  struct Case {
    const char* name;
    double square_sum, loss_sum, not_finite_ranks;
    bool finite;
  };
  const Case cases[] = {{"finite", 4, 7, 0, true},
                        {"no labels", 0, 0, 0, true},
                        {"a norm of NaN", NAN, 7, 0, false},
                        {"an infinite norm", INFINITY, 7, 0, false},
                        {"a norm beyond fp32", 1e78, 7, 0, false},
                        {"the largest norm", 1e76, 7, 0, true},
                        {"a loss of NaN", 4, NAN, 0, false},
                        {"a loss of infinity", 4, INFINITY, 0, false},
                        {"a loss of -infinity", 4, -INFINITY, 0, false},
                        {"a loss beyond fp32", 4, 1e300, 0, true},
                        {"one rank reports", 4, 7, 1, false}};
  Stream& stream = checker.stream;
  const std::vector<float> words = {1, 2, 3};
  const auto is = [&](const std::string& name, const StepState& got, const UpdateProgress& progress, int64_t made,
                      bool halted, const std::vector<float>& amax) {
    const std::vector<float> want = halted ? words : std::vector<float>(words.size(), 0.0f);
    const auto bias = [&](float beta) { return float(1 - std::pow(double(beta), made)); };
    checker.that(
        name,
        progress.made == made && progress.halted == halted && got.updates == made && got.held == halted &&
            amax == want && (halted || (got.bias_correction1 == bias(0.9f) && got.bias_correction2 == bias(0.95f))),
        format("%lld made, halted %lld, held %u", (long long)progress.made, (long long)progress.halted, got.held));
  };
  for (const Case& c : cases) {
    StepState before = state_with(1);
    before.loss_sum = c.loss_sum, before.not_finite_ranks = c.not_finite_ranks, before.step = 99;
    UpdateProgress progress{41, 0};
    for (int step = 0; step < 2; ++step) {  // the second one is finite
      const Array<double> sum(stream, std::vector<double>{step ? 4 : c.square_sum});
      Array<float> amax(stream, words);
      if (step) before.loss_sum = 7, before.not_finite_ranks = 0;
      const StepState got = finish(stream, before, sum.tensor(), &progress, &amax);
      is(format("%s, step %d", c.name, step), got, progress, c.finite ? 42 + step : 41, !c.finite, amax.download());
    }
  }
  // The bias corrections are those that std::pow gives.
  for (const float beta : {0.9f, 0.95f, 0.999f}) {
    int others = 0;
    for (int64_t t = 1; t <= 100000; ++t) others += bias_correction(beta, t) != float(1 - std::pow(double(beta), t));
    checker.that(format("the bias corrections of %g", double(beta)), others == 0,
                 format("%d of 100000 differ", others));
  }
}

}  // namespace

void check(Checker& checker) {
  Generator generator(3);
  const auto random = [&](size_t n, double scale = 1) { return random_normal<float>(generator, n, scale); };
  for (const size_t n : {1, 2, 7, 8, 9, 127, 129, 1023, 1025, 32767, 32768, 32769, 70001, 300007})
    check_norm(checker, format("n=%zu", n), {random(n)}), check_narrow(checker, random(n));
  check_norm(checker, "three buffers", {random(5), random(40000), random(9, 100)});
  check_norm(checker, "squares beyond fp32", {random(1000, 1e20)});
  check_norm(checker, "squares below fp32", {random(1000, 1e-25)});
  std::vector<std::vector<float>> many(600, {0.25f});
  check_norm(checker, "600 buffers of one", many);
  // One element of each place counts, wherever it stands.
  int missed = 0;
  for (size_t i = 0; i < 33000; i += 61) {
    std::vector<float> one(33000, 0.0f);
    one[i] = 3;
    missed += norm_of(checker.stream, {one}, 0).grad_norm != 3.0f;
  }
  checker.that("one element among zeros", missed == 0, format("%d of 541 places are not seen", missed));

  check_factor(checker, "clip/norm, not clip/norm²", 8, 2, 8, 0.25f);
  check_factor(checker, "a norm within the clip", 8, 9, 8, 1);
  check_factor(checker, "a norm equal to the clip", 8, 8, 8, 1);
  check_factor(checker, "no clipping", 8, 0, 8, 1);
  check_factor(checker, "no gradient", 0, 1, 0, 1);
  check_factor(checker, "no gradient, no clipping", 0, 0, 0, 1);
  check_factor(checker, "NaN", NAN, 1, NAN, NAN);
  check_factor(checker, "NaN without clipping", NAN, 0, NAN, NAN);
  check_factor(checker, "infinity", -INFINITY, 1, INFINITY, NAN);

  check_held(checker);

  Stream& stream = checker.stream;
  Array<float> gradients(stream, 8);
  Array<double> partials(stream, 8);
  const Tensor g = gradients.tensor(), one = partials.tensor({1}), none = partials.tensor({0});
  checker.refused("no gradients", "global_norm_squares of no numbers",
                  [&] { global_norm_squares(stream, one, g.columns(0, 0)); });
  checker.refused("misaligned", "not 16-byte aligned", [&] { global_norm_squares(stream, one, g.columns(1, 4)); });
  checker.refused("partial sums of more", "partials is (8) of fp64\n  expected (1) of fp64",
                  [&] { global_norm_squares(stream, partials.tensor(), g); });
  checker.refused("gradients in fp64", "numbers is (1) of fp64", [&] { global_norm_squares(stream, one, one); });
  checker.refused("no partial sums", "no partial sums", [&] { global_norm_finish(stream, nullptr, none, {}); });
  checker.refused("nothing to sum", "no partial sums", [&] { global_norm_sum(stream, one, none); });
  checker.refused("a total in fp32", "total is (1) of fp32",
                  [&] { global_norm_sum(stream, gradients.tensor({1}), one); });
}

void bench(Bencher& bencher) {
  Stream& stream = bencher.stream;
  const size_t n = bencher.gpu_sizes() ? size_t(1) << 30 : size_t(1) << 20;
  Array<double> partials(stream, global_norm_partials(n));
  Array<StepState> state(stream, {state_with(1)});
  const Array<UpdateProgress> progress(stream, {UpdateProgress{}});
  const Array<float> gradients(stream, std::vector<float>(n, 0.5f));
  bencher.time(format("global_norm_squares, %zu elements", n), double(n) * 4, double(n) * 2,
               [&] { global_norm_squares(stream, partials.tensor(), gradients.tensor()); });
  bencher.time(format("global_norm_finish, %zu partial sums", partials.size()), double(partials.size()) * 8, 0, [&] {
    global_norm_finish(stream, state.data(), partials.tensor(), {progress.data(), kConstants});
  });
}
