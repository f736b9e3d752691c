#include "llmc/train/sampling.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "llmc/base/error.h"
#include "llmc/base/philox.h"

namespace {

// The token at which the running sum of probabilities passes `u` in [0, 1).
int32_t draw(const std::vector<float>& logits, double temperature, double u) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
  std::vector<double> weights(logits.size());
  double sum = 0;
  for (size_t v = 0; v < logits.size(); ++v) sum += weights[v] = std::exp((double(logits[v]) - largest) / temperature);
  double rest = u * sum;
  for (size_t v = 0; v < weights.size(); ++v)
    if ((rest -= weights[v]) < 0) return int32_t(v);
  return int32_t(weights.size()) - 1;
}

}  // namespace

std::vector<int32_t> prompt_tokens(const std::string& prompt, const LlamaConfig& config) {
  std::vector<int32_t> tokens;
  if (prompt.empty()) return {config.bos >= 0 ? config.bos : config.V > '\n' ? '\n' : 0};
  if (config.V <= 256) {
    for (char c : prompt) tokens.push_back(int32_t(static_cast<unsigned char>(c)));
  } else {
    std::istringstream words(prompt);
    for (std::string word; words >> word;) {
      size_t used = 0;
      long token = -1;
      try {
        token = std::stol(word, &used);
      } catch (const std::exception&) {
      }
      REQUIRE(used == word.size() && token >= 0,
              "--prompt: \"%s\" is not a token number\n"
              "  this model has %d tokens and no tokenizer here: give numbers, as in --prompt '128000 9906'",
              word.c_str(), config.V);
      tokens.push_back(int32_t(std::min<long>(token, INT32_MAX)));
    }
  }
  for (int32_t token : tokens) REQUIRE(token < config.V, "--prompt: token %d, the model has %d", token, config.V);
  return tokens;
}

std::string token_text(int32_t token, const LlamaConfig& config) {
  if (config.V <= 256) return std::string(1, char(token));
  return std::to_string(token) + " ";
}

void sample(Trainer& trainer, const LlamaConfig& config, std::vector<int32_t> tokens, const SamplingSettings& settings,
            const std::function<bool(int32_t)>& emit) {
  REQUIRE(!tokens.empty(), "a sample needs at least one token to begin with");
  const uint64_t key = philox_key("sample", settings.seed);
  const size_t window = size_t(settings.window);
  for (int i = 0; i < settings.tokens; ++i) {
    const size_t length = std::min(tokens.size(), window);
    std::vector<int32_t> context(tokens.end() - ptrdiff_t(length), tokens.end());
    // Lengths in steps of 64: products have few shapes; what follows the last token does not change its logits.
    context.resize(std::min(window, (length + 63) / 64 * 64), context.back());
    const std::vector<float> logits = trainer.logits(context, 1, int(context.size()), int(length) - 1);
    const double u = double(philox(key, uint64_t(i), 0).words[0]) * 0x1p-32;
    const int32_t token = draw(logits, settings.temperature, u);
    tokens.push_back(token);
    if (!emit(token)) return;
    if (std::find(config.eos.begin(), config.eos.end(), token) != config.eos.end()) return;
  }
}
