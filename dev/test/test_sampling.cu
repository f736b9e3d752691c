// Covers: sampling: with keys and values kept, the logits and the text are those without; temperature and top-p
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "dev/test/test.h"
#include "dev/test/tiny_trainer.h"
#include "llmc/run/sampling.h"

namespace {

constexpr int kWindow = 96;

struct Model : Training {
  Model(World& world, bool training, float std = 0.2f, const TinyModel& family = {})
      : Training(world, config_with(std, family), settings_for(training)) {}
  static ModelConfig config_with(float std, const TinyModel& family) {
    ModelConfig config = tiny(family), shape = ModelConfig::preset("tiny");
    config.C = shape.C, config.NH = shape.NH, config.NKV = shape.NKV, config.HD = shape.HD, config.FF = shape.FF;
    config.V = shape.V;
    config.set_layers(shape.L);
    config.init_std = double(std);  // far from uniform
    return config;
  }
  static TrainerSettings settings_for(bool training) {
    TrainerSettings settings;
    settings.B = training ? 2 : 1, settings.T = kWindow, settings.training = training;
    return settings;
  }
  std::vector<float> uncached(const std::vector<int32_t>& tokens) {
    return trainer->logits(tokens, 1, int(tokens.size()), int(tokens.size()) - 1);
  }
  std::vector<int32_t> text(std::vector<int32_t> tokens, const SamplingSettings& settings) {
    std::vector<int32_t> emitted;
    sample(*trainer, std::move(tokens), settings, [&](int32_t token) {
      emitted.push_back(token);
      return true;
    });
    return emitted;
  }
};

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), norm += double(b[i]) * b[i];
  return std::sqrt(difference / norm);
}

std::vector<int32_t> some_tokens(int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * i * 7 + 13 * i + 5) % 256);
  return tokens;
}

}  // namespace

TEST_CASE("a sequence that is continued some tokens at a time has the logits of the whole") {
  for (const TinyModel& family : kFamilyModels)
    for (const bool training : {false, true}) {
      CAPTURE(family.family);
      World world;
      Model model(world, training, 0.2f, family), other(world, training, 0.2f, family);
      const std::vector<int32_t> tokens = some_tokens(kWindow);
      int past = 0;
      for (const int count : {1, 1, 5, 40, 1, 1, 16, 31}) {
        const std::span<const int32_t> more(tokens.data() + past, size_t(count));
        const std::vector<float> cached = model.trainer->next_logits(more, past);
        past += count;
        CAPTURE(past);
        // Products of another number of rows add in another order: some 1e-7 a layer.
        CHECK(distance(cached, other.uncached({tokens.begin(), tokens.begin() + past})) < 1e-5);
      }
      CHECK(past == kWindow);
      CHECK(error_of([&] { model.trainer->next_logits(std::vector<int32_t>{1}, past); }).find("at most 96") !=
            std::string::npos);
    }
}

TEST_CASE("what is not there cannot be continued") {
  World world;
  Model model(world, true);
  CHECK(error_of([&] { model.trainer->next_logits(std::vector<int32_t>{1}, 1); }).find("of 0 are there") !=
        std::string::npos);
  model.trainer->next_logits(std::vector<int32_t>{1, 2, 3}, 0);
  model.trainer->logits(some_tokens(20), 2, 10);  // two sequences lie there now
  CHECK(error_of([&] { model.trainer->next_logits(std::vector<int32_t>{1}, 3); }).find("of 0 are there") !=
        std::string::npos);
}

TEST_CASE("the likeliest tokens are those that the whole context gives, also beyond the window") {
  for (const TinyModel& family : kFamilyModels) {
    World world;
    Model model(world, false, 0.2f, family), other(world, false, 0.2f, family);
    std::vector<int32_t> tokens = some_tokens(3);
    SamplingSettings greedy{200, 0, 1, 1, kWindow};
    const std::vector<int32_t> text = model.text(tokens, greedy);
    CHECK(text.size() == 200);
    size_t begin = 0, close_calls = 0;
    for (const int32_t token : text) {
      if (tokens.size() - begin > size_t(kWindow)) begin = tokens.size() - kWindow / 2;
      std::vector<float> logits = other.uncached({tokens.begin() + ptrdiff_t(begin), tokens.end()});
      const float chosen = logits[size_t(token)];
      std::sort(logits.rbegin(), logits.rend());
      if (logits[0] - logits[1] > 1e-4f) CHECK(chosen == logits[0]);
      else ++close_calls;
      tokens.push_back(token);
    }
    CHECK(close_calls < 20);
  }
}

TEST_CASE("a seed decides the sample; a prompt may be longer than the window") {
  World world;
  Model model(world, false);
  SamplingSettings settings{40, 1, 1, 7, kWindow};
  const auto first = model.text(some_tokens(10), settings);
  CHECK(first == model.text(some_tokens(10), settings));
  settings.seed = 8;
  CHECK(first != model.text(some_tokens(10), settings));
  CHECK(model.text(some_tokens(3 * kWindow), settings).size() == 40);
}

TEST_CASE("a text ends with the first token that ends one") {
  World world;
  Model model(world, false);
  SamplingSettings settings{40, 0, 1, 1, kWindow};
  const std::vector<int32_t> whole = model.text(some_tokens(3), settings);
  settings.ends = {whole[5], 255};
  const auto end =
      std::find_if(whole.begin(), whole.end(), [&](int32_t token) { return token == whole[5] || token == 255; });
  CHECK(model.text(some_tokens(3), settings) == std::vector<int32_t>(whole.begin(), end + 1));
}

TEST_CASE("temperature and top-p keep to the distribution") {
  World world;
  Model model(world, false, 0.05f);
  const std::vector<int32_t> tokens = some_tokens(8);
  const std::vector<float> logits = model.uncached(tokens);
  std::vector<double> p;
  double sum = 0;
  for (const float x : logits) p.push_back(std::exp(double(x) / 0.7)), sum += p.back();
  std::vector<double> sorted = p;
  std::sort(sorted.rbegin(), sorted.rend());
  double kept = 0;
  size_t allowed = 0;
  while (kept < 0.3 * sum) kept += sorted[allowed++];
  std::map<int32_t, int> seen;
  const int draws = 1000;
  for (int i = 0; i < draws; ++i) {
    SamplingSettings one{1, 0.7, 0.3, uint64_t(i), kWindow};
    ++seen[model.text(tokens, one)[0]];
  }
  double chi_square = 0;
  size_t tokens_with_rate = 0;
  for (size_t v = 0; v < p.size(); ++v) {
    const double expected = p[v] >= sorted[allowed - 1] ? draws * p[v] / kept : 0;
    const int found = seen.count(int32_t(v)) ? seen[int32_t(v)] : 0;
    if (expected == 0) CHECK(found == 0);
    if (expected < 5) continue;
    chi_square += (found - expected) * (found - expected) / expected;
    ++tokens_with_rate;
  }
  CAPTURE(tokens_with_rate);
  CHECK(tokens_with_rate > 10);
  CHECK(chi_square < double(tokens_with_rate) + 6 * std::sqrt(2.0 * double(tokens_with_rate)));  // six deviations
}
