#include "llmc/config/config.h"

#include <algorithm>

#include "llmc/base/error.h"

const Family* find_family(const std::string& model_type) {
  for (const Family& family : kFamilies)
    if (model_type == family.model_type) return &family;
  return nullptr;
}

void ModelConfig::set_layers(int count) {
  REQUIRE(count >= 1 && count <= kMostLayers, "model %s: %d layers\n  expected 1 to %d", name.c_str(), count,
          kMostLayers);
  L = count;
  if (!layers.empty()) layers.resize(size_t(count), layers.back());
  if (windowed_layers() == 0) window = 0;
}

int ModelConfig::windowed_layers() const {
  return int(std::count_if(layers.begin(), layers.end(), [](const Layer& layer) { return layer.windowed; }));
}

std::vector<int> ModelConfig::end_tokens() const {
  const Json* own = generation.is_null() ? nullptr : generation.find("eos_token_id");
  const std::vector<int> tokens = own ? read_tokens(*own) : std::vector<int>();
  return tokens.empty() ? eos : tokens;
}

void ModelConfig::check() const {
  REQUIRE(
      C > 0 && L > 0 && NH > 0 && NKV > 0 && HD > 0 && FF > 0 && V > 0,
      "model %s: hidden %d, layers %d, heads %d, key/value heads %d, head size %d, FFN %d, vocabulary %d: all must be "
      "positive",
      name.c_str(), C, L, NH, NKV, HD, FF, V);
  REQUIRE(
      C <= kMostWidth && FF <= kMostWidth && int64_t(NH) * HD <= kMostWidth && L <= kMostLayers && V <= kMostVocabulary,
      "model %s: hidden %d, FFN %d, %d heads of %d, layers %d, vocabulary %d\n"
      "  expected at most %d for hidden, FFN and all heads together, %d layers, %d tokens",
      name.c_str(), C, FF, NH, HD, L, V, kMostWidth, kMostLayers, kMostVocabulary);
  REQUIRE(NH % NKV == 0, "model %s: %d query heads are not a multiple of %d key/value heads", name.c_str(), NH, NKV);
  REQUIRE(HD % 8 == 0 && HD >= 16 && HD <= 256, "model %s: head size %d, expected 16 to 256 in steps of 8",
          name.c_str(), HD);
  REQUIRE(norm_eps > 0 && init_std > 0, "model %s: rms_norm_eps %g and initializer_range %g must be positive",
          name.c_str(), norm_eps, init_std);
  REQUIRE(pad < V, "model %s: pad_token_id %d is beyond the vocabulary of %d", name.c_str(), pad, V);
  REQUIRE(window >= 0 && layers.size() == (window == 0 && layers.empty() ? 0 : size_t(L)),
          "model %s: a window of %d keys, and a list of %zu of %d layers", name.c_str(), window, layers.size(), L);
  rope.check(("model " + name).c_str());
}

namespace {

bool takes_tensor_degree(const ModelConfig& c, int degree) {
  return c.NH % degree == 0 && c.FF % degree == 0 && (c.NKV % degree == 0 || degree % c.NKV == 0) &&
         (degree - 1) * c.vocabulary_part(degree) < c.V;
}

[[noreturn]] void fail_tensor_degree(const ModelConfig& c, int degree) {
  std::string possible;
  for (int d = 1; d <= c.NH; ++d)
    if (takes_tensor_degree(c, d)) possible += (possible.empty() ? "" : ", ") + std::to_string(d);
  fail(
      "--tensor-parallel-degree %d: %s has %d query heads, %d key and value heads, an FFN of %d columns and a "
      "vocabulary of %d\n  it must divide the query heads and the columns, and divide the key and value heads or be "
      "a multiple of them\n  choose one of: %s",
      degree, c.name.c_str(), c.NH, c.NKV, c.FF, c.V, possible.c_str());
}

}  // namespace

ModelConfig ModelConfig::tensor_part(int degree, int rank) const {
  if (degree == 1) return *this;
  if (!takes_tensor_degree(*this, degree)) fail_tensor_degree(*this, degree);
  ModelConfig part = *this;
  part.NH = NH / degree, part.NKV = std::max(NKV / degree, 1), part.FF = FF / degree;
  part.V = std::min(vocabulary_part(degree), V - rank * vocabulary_part(degree));
  return part;
}
