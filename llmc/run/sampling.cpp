#include "llmc/run/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "llmc/base/error.h"
#include "llmc/base/philox.h"
#include "llmc/base/text.h"
#include "llmc/run/setup.h"

namespace {

// Returns the token at which the running sum of probabilities exceeds `u` in [0, 1), among the most likely tokens that
// together have top_p.
int32_t draw(const std::vector<float>& logits, const SamplingSettings& settings, double u) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (settings.temperature == 0) return int32_t(likeliest - logits.begin());
  std::vector<double> weights(logits.size());
  double sum = 0;
  for (size_t v = 0; v < logits.size(); ++v)
    sum += weights[v] = std::exp((double(logits[v]) - *likeliest) / settings.temperature);
  if (settings.top_p < 1) {
    std::vector<int32_t> order(weights.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return weights[size_t(a)] > weights[size_t(b)]; });
    double kept = 0;
    for (const int32_t v : order) {
      double& weight = weights[size_t(v)];
      if (kept >= settings.top_p * sum) weight = 0;
      kept += weight;
    }
    sum = kept;
  }
  double rest = u * sum;
  int32_t last = 0;
  for (size_t v = 0; v < weights.size(); ++v) {
    if (weights[v] > 0) last = int32_t(v);
    if ((rest -= weights[v]) < 0) break;
  }
  return last;
}

}  // namespace

void sample(Trainer& trainer, std::vector<int32_t> tokens, const SamplingSettings& settings,
            const std::function<bool(int32_t)>& emit) {
  REQUIRE(!tokens.empty(), "a sample needs at least one token to begin with");
  const uint64_t key = philox_key("sample", settings.seed);
  const size_t window = size_t(settings.window);
  size_t begin = tokens.size() > window ? tokens.size() - window : 0, cached = begin;  // indices into tokens
  for (int i = 0; i < settings.tokens; ++i) {
    if (tokens.size() - begin > window) begin = cached = tokens.size() - std::max<size_t>(1, window / 2);
    const std::span<const int32_t> more(tokens.begin() + ptrdiff_t(cached), tokens.end());
    const std::vector<float> logits = trainer.next_logits(more, int(cached - begin));
    cached = tokens.size();
    const double u = double(philox(key, uint64_t(i), 0).words[0]) * 0x1p-32;
    const int32_t own = draw(logits, settings, u),
                  token = settings.broadcast_token ? settings.broadcast_token(own) : own;
    tokens.push_back(token);
    if (!emit(token)) return;
    if (std::ranges::find(settings.ends, token) != settings.ends.end()) return;
  }
}

std::string print_sample(Setup& setup, Trainer& trainer, const std::string& when, const std::function<bool()>& stops) {
  const Options& options = setup.options;
  setup.console.heading(format("sample %s:", when.c_str()));
  std::string text;
  TextCodec::Writer writer(setup.codec);
  const bool shown = options.sample_only || !options.quiet;
  const auto add = [&](const std::string& part) {
    if (shown) setup.console.text_part(part);
    text += part;
  };
  for (const int32_t token : setup.prompt)  // of a chat, only what the model says is shown
    if (const std::string part = writer.take(token); !options.chat) add(part);
  SamplingSettings settings{int(options.sample_tokens),
                            options.temperature,
                            options.top_p,
                            uint64_t(options.seed),
                            std::min(setup.settings.context_length, setup.model.config.max_positions),
                            setup.ends};
  Stream stream(setup.device, "sample");
  if (setup.mesh.tensor_degree * setup.mesh.context_degree > 1)
    settings.broadcast_token = [&](int32_t token) {
      return int32_t(broadcast_number(*setup.communicator, stream, token));
    };
  int64_t left = settings.tokens;
  sample(trainer, setup.prompt, settings, [&](int32_t token) {
    add(writer.take(token));
    left = std::ranges::count(setup.ends, token) ? -1 : left - 1;
    return !stops || !stops();
  });
  add(writer.finish());
  if (shown) setup.console.text_part("\n");
  if (options.chat && options.sample_only && left == 0)
    setup.console.warning(format("the answer is cut off at --sample-tokens %lld", (long long)options.sample_tokens));
  return text;
}
