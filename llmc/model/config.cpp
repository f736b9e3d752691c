#include "llmc/model/config.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/model/config_keys.h"

namespace {

constexpr RopeScaling kPlain10k{10000.0, false, 1, 1, 4, 8192};
constexpr RopeScaling kPlain500k{500000.0, false, 1, 1, 4, 8192};
constexpr RopeScaling kLlama31{500000.0, true, 8, 1, 4, 8192};
constexpr RopeScaling kLlama32{500000.0, true, 32, 1, 4, 8192};

struct Preset {
  const char* name;
  int C, L, NH, NKV, HD, FF, V;
  double norm_eps;
  bool tied;
  int max_positions;
  RopeScaling rope;
  int bos, eos;
};

// The preset tiny reads bytes. The others are the published shapes (Touvron et al. 2023; Grattafiori et al. 2024).
constexpr Preset kPresets[] = {
    {"tiny", 128, 4, 4, 2, 32, 384, 256, 1e-5, false, 2048, kPlain10k, -1, -1},
    {"llama2-7b", 4096, 32, 32, 32, 128, 11008, 32000, 1e-5, false, 4096, kPlain10k, 1, 2},
    {"llama3.2-1b", 2048, 16, 32, 8, 64, 8192, 128256, 1e-5, true, 131072, kLlama32, 128000, 128001},
    {"llama3.2-3b", 3072, 28, 24, 8, 128, 8192, 128256, 1e-5, true, 131072, kLlama32, 128000, 128001},
    {"llama3-8b", 4096, 32, 32, 8, 128, 14336, 128256, 1e-5, false, 8192, kPlain500k, 128000, 128001},
    {"llama3-70b", 8192, 80, 64, 8, 128, 28672, 128256, 1e-5, false, 8192, kPlain500k, 128000, 128001},
    {"llama3-405b", 16384, 126, 128, 8, 128, 53248, 128256, 1e-5, false, 131072, kLlama31, 128000, 128001},
};

RopeScaling read_rope(const Json& json) {
  RopeScaling rope{10000.0, false, 1, 1, 4, 8192};
  const Json* parameters = json.find("rope_parameters");
  if (!parameters || parameters->is_null()) parameters = json.find("rope_scaling");
  rope.theta = json.get_double("rope_theta", rope.theta);
  if (!parameters || parameters->is_null()) return rope;
  rope.theta = parameters->get_double("rope_theta", rope.theta);
  const std::string type = parameters->get_string("rope_type", parameters->get_string("type", "default"));
  if (type == "default") return rope;
  // These kinds scale the positions by a factor. A factor of 1 changes nothing.
  const bool stretches = type == "linear" || type == "dynamic" || type == "yarn";
  if (stretches && parameters->get_double("factor", 0) == 1) return rope;
  REQUIRE(type == "llama3", "%s: rope_type \"%s\" is not computed here\n  expected \"default\" or \"llama3\"",
          parameters->where().c_str(), type.c_str());
  rope.llama3 = true;
  rope.factor = parameters->get_double("factor");
  rope.low_freq_factor = parameters->get_double("low_freq_factor");
  rope.high_freq_factor = parameters->get_double("high_freq_factor");
  rope.original_max_position = int(parameters->get_int("original_max_position_embeddings"));
  return rope;
}

// Reads a dimension: a positive integer of at most 31 bits.
int read_size(const Json& json, const char* key, int64_t fallback) {
  const int64_t value = fallback > 0 ? json.get_int(key, fallback) : json.get_int(key);
  REQUIRE(value > 0 && value <= 0x7fffffff, "%s: %s is %lld, expected 1 to 2^31-1", json.where().c_str(), key,
          (long long)value);
  return int(value);
}

// Reads null, one number or a list.
std::vector<int> read_tokens(const Json* json) {
  if (!json || json->is_null()) return {};
  if (!json->is_array()) return {int(json->as_int())};
  std::vector<int> tokens;
  for (const Json& token : json->elements()) tokens.push_back(int(token.as_int()));
  return tokens;
}

}  // namespace

ModelConfig ModelConfig::preset(const std::string& name) {
  for (const Preset& p : kPresets) {
    if (name != p.name) continue;
    ModelConfig config;
    config.name = p.name;
    config.C = p.C, config.L = p.L, config.NH = p.NH, config.NKV = p.NKV, config.HD = p.HD, config.FF = p.FF;
    config.V = p.V, config.norm_eps = p.norm_eps, config.tied = p.tied, config.max_positions = p.max_positions;
    config.rope = p.rope, config.bos = p.bos;
    if (p.eos >= 0) config.eos = {p.eos};
    return config;
  }
  std::string known;
  for (const Preset& p : kPresets) known += std::string(" ") + p.name;
  const std::string near = nearest(name, presets());
  fail("--model %s is neither a preset nor a file or directory%s%s\n  presets:%s", name.c_str(),
       near.empty() ? "" : "; did you mean ", near.c_str(), known.c_str());
}

std::vector<std::string> ModelConfig::presets() {
  std::vector<std::string> names;
  for (const Preset& p : kPresets) names.push_back(p.name);
  return names;
}

ModelConfig ModelConfig::from_json(const Json& json, const std::string& name) {
  const std::string type = json.get_string("model_type", "llama");
  REQUIRE(type == "llama", "%s: model_type is \"%s\", expected \"llama\"", json.where().c_str(), type.c_str());
  ModelConfig config;
  config.name = name;
  config.C = read_size(json, "hidden_size", 0);
  config.L = read_size(json, "num_hidden_layers", 0);
  config.NH = read_size(json, "num_attention_heads", 0);
  config.NKV = read_size(json, "num_key_value_heads", config.NH);
  config.HD = read_size(json, "head_dim", config.C / config.NH);
  config.FF = read_size(json, "intermediate_size", 0);
  config.V = read_size(json, "vocab_size", 0);
  config.max_positions = read_size(json, "max_position_embeddings", 2048);
  config.norm_eps = json.get_double("rms_norm_eps", 1e-6);
  config.init_std = json.get_double("initializer_range", 0.02);
  config.tied = json.get_bool("tie_word_embeddings", false);
  config.rope = read_rope(json);
  config.bos = int(json.get_int("bos_token_id", -1));
  config.pad = int(json.get_int("pad_token_id", -1));
  config.eos = read_tokens(json.find("eos_token_id"));
  require_known_keys(json);
  config.check();
  return config;
}

Json ModelConfig::to_json() const {
  Json rope_parameters = Json::object();
  rope_parameters.set("rope_type", rope.llama3 ? "llama3" : "default").set("rope_theta", rope.theta);
  if (rope.llama3)
    rope_parameters.set("factor", rope.factor)
        .set("low_freq_factor", rope.low_freq_factor)
        .set("high_freq_factor", rope.high_freq_factor)
        .set("original_max_position_embeddings", rope.original_max_position);
  Json json = Json::object();
  json.set("architectures", Json::array().push_back("LlamaForCausalLM"))
      .set("model_type", "llama")
      .set("hidden_size", C)
      .set("num_hidden_layers", L)
      .set("num_attention_heads", NH)
      .set("num_key_value_heads", NKV)
      .set("head_dim", HD)
      .set("intermediate_size", FF)
      .set("vocab_size", V)
      .set("max_position_embeddings", max_positions)
      .set("rms_norm_eps", norm_eps)
      .set("initializer_range", init_std)
      .set("tie_word_embeddings", tied)
      .set("hidden_act", "silu")
      .set("attention_bias", false)
      .set("mlp_bias", false)
      .set("rope_theta", rope.theta)
      .set("rope_parameters", rope_parameters)
      .set("dtype", "float32")
      .set("torch_dtype", "float32");
  // Older versions of transformers read the scaling from this key.
  if (rope.llama3) json.set("rope_scaling", rope_parameters);
  json.set("bos_token_id", bos >= 0 ? Json(bos) : Json());
  if (pad >= 0) json.set("pad_token_id", pad);
  Json eos_json;
  for (int e : eos) eos_json.push_back(e);
  json.set("eos_token_id", eos.size() == 1 ? Json(eos[0]) : eos_json);
  return json;
}

std::vector<int> ModelConfig::end_tokens() const {
  const std::vector<int> own = generation.is_null() ? std::vector<int>() : read_tokens(generation.find("eos_token_id"));
  return own.empty() ? eos : own;
}

void ModelConfig::check() const {
  REQUIRE(
      C > 0 && L > 0 && NH > 0 && NKV > 0 && HD > 0 && FF > 0 && V > 0,
      "model %s: hidden %d, layers %d, heads %d, key/value heads %d, head size %d, FFN %d, vocabulary %d: all must be "
      "positive",
      name.c_str(), C, L, NH, NKV, HD, FF, V);
  REQUIRE(NH % NKV == 0, "model %s: %d query heads are not a multiple of %d key/value heads", name.c_str(), NH, NKV);
  REQUIRE(HD % 8 == 0 && HD >= 16 && HD <= 256, "model %s: head size %d, expected 16 to 256 in steps of 8",
          name.c_str(), HD);
  REQUIRE(rope.theta > 0 && norm_eps > 0 && init_std > 0,
          "model %s: rope_theta %g, rms_norm_eps %g and initializer_range %g must be positive", name.c_str(),
          rope.theta, norm_eps, init_std);
  REQUIRE(!rope.llama3 || (rope.factor >= 1 && rope.high_freq_factor > rope.low_freq_factor &&
                           rope.low_freq_factor > 0 && rope.original_max_position > 0),
          "model %s: llama3 RoPE scaling with factor %g, low_freq_factor %g, high_freq_factor %g, "
          "original_max_position_embeddings %d: expected factor >= 1 and 0 < low < high",
          name.c_str(), rope.factor, rope.low_freq_factor, rope.high_freq_factor, rope.original_max_position);
}

namespace {

bool takes_tensor_degree(const ModelConfig& c, int degree) {
  return c.NH % degree == 0 && c.FF % degree == 0 && (c.NKV % degree == 0 || degree % c.NKV == 0) &&
         (degree - 1) * c.vocabulary_part(degree) < c.V;
}

}  // namespace

ModelConfig ModelConfig::tensor_part(int degree, int rank) const {
  if (degree == 1) return *this;
  std::string possible;
  for (int d = 1; d <= NH; ++d)
    if (takes_tensor_degree(*this, d)) possible += (possible.empty() ? "" : ", ") + std::to_string(d);
  REQUIRE(
      takes_tensor_degree(*this, degree),
      "--tensor-parallel-degree %d: %s has %d query heads, %d key and value heads, an FFN of %d columns and a "
      "vocabulary of %d\n  it must divide the query heads and the columns, and divide the key and value heads or be "
      "a multiple of them\n  choose one of: %s",
      degree, name.c_str(), NH, NKV, FF, V, possible.c_str());
  ModelConfig part = *this;
  part.NH = NH / degree, part.NKV = std::max(NKV / degree, 1), part.FF = FF / degree;
  part.V = std::min(vocabulary_part(degree), V - rank * vocabulary_part(degree));
  return part;
}
