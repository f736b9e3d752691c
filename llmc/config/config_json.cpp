// Hugging Face's config.json, read and written.
#include <algorithm>
#include <climits>
#include <cmath>

#include "llmc/base/error.h"
#include "llmc/config/config.h"
#include "llmc/config/config_keys.h"

namespace {

constexpr const char* kRopeTypes[] = {"default", "linear", "llama3", "yarn"};  // by RopeType

bool has(const Json& json, const char* key) {
  const Json* value = json.find(key);
  return value && !value->is_null();
}

// Reads an integer from `least` to `most`.
int read_int(const Json& json, const char* key, int64_t fallback, int least, int most = INT_MAX) {
  const int64_t value = json.get_int(key, fallback);
  REQUIRE(value >= least && value <= most, "%s: %s is %lld, expected %d to %d", json.where().c_str(), key,
          (long long)value, least, most);
  return int(value);
}

// Reads a dimension: a positive integer. A fallback of 0: it must be there.
int read_size(const Json& json, const char* key, int64_t fallback, int most = INT_MAX) {
  return read_int(json, key, fallback > 0 ? fallback : json.get_int(key), 1, most);
}

int read_token(const Json& json) {
  const int64_t token = json.as_int();
  REQUIRE(token >= INT_MIN && token <= INT_MAX, "%s is %lld\n  expected the number of a token", json.where().c_str(),
          (long long)token);
  return int(token);
}

// attention_factor, or as `mscale` says (Peng et al. 2023, section 3.4, and DeepSeek's form of it).
double read_attention_factor(const Json& rope, double factor) {
  if (has(rope, "attention_factor")) return rope.get_double("attention_factor");
  const auto scale = [&](double times) { return factor <= 1 ? 1 : 0.1 * times * std::log(factor) + 1; };
  const double mscale = rope.get_double("mscale", 0), of_all = rope.get_double("mscale_all_dim", 0);
  return mscale != 0 && of_all != 0 ? scale(mscale) / scale(of_all) : scale(1);
}

RopeScaling read_rope(const Json& json, int max_positions) {
  RopeScaling rope;
  rope.theta = json.get_double("rope_theta", rope.theta);
  // Hugging Face prefers the older name if both are there, but for one without a key.
  const bool older = has(json, "rope_scaling") && json.at("rope_scaling").size() > 0;
  const char* const name = older ? "rope_scaling" : "rope_parameters";
  if (!has(json, name)) return rope;
  const Json& parameters = json.at(name);
  rope.theta = parameters.get_double("rope_theta", rope.theta);
  const std::string type = parameters.get_string("rope_type", parameters.get_string("type", "default"));
  // This kind scales the positions by a factor. A factor of 1 changes nothing.
  if (type == "dynamic" && parameters.get_double("factor", 0) == 1) return rope;
  const auto found = std::find(std::begin(kRopeTypes), std::end(kRopeTypes), type);
  REQUIRE(found != std::end(kRopeTypes),
          "%s: rope_type \"%s\" is not computed here\n  expected \"default\", \"linear\", \"llama3\" or \"yarn\"",
          parameters.where().c_str(), type.c_str());
  rope.type = RopeType(found - kRopeTypes);
  if (rope.type == RopeType::plain) return rope;
  rope.factor = parameters.get_double("factor");
  if (rope.type == RopeType::linear) return rope;
  rope.original_max_position = read_size(parameters, "original_max_position_embeddings", max_positions);
  if (rope.type == RopeType::llama3) {
    rope.low_freq_factor = parameters.get_double("low_freq_factor");
    rope.high_freq_factor = parameters.get_double("high_freq_factor");
    return rope;
  }
  if (has(parameters, "beta_fast")) rope.beta_fast = parameters.get_double("beta_fast");
  if (has(parameters, "beta_slow")) rope.beta_slow = parameters.get_double("beta_slow");
  rope.attention_factor = read_attention_factor(parameters, rope.factor);
  const bool null = parameters.contains("truncate") && !has(parameters, "truncate");  // as false, in transformers
  rope.truncate = !null && parameters.get_bool("truncate", true);
  return rope;
}

Json write_rope(const RopeScaling& rope) {
  Json json = Json::object();
  json.set("rope_type", kRopeTypes[int(rope.type)]).set("rope_theta", rope.theta);
  if (rope.type == RopeType::plain) return json;
  json.set("factor", rope.factor);
  if (rope.type == RopeType::llama3)
    json.set("low_freq_factor", rope.low_freq_factor).set("high_freq_factor", rope.high_freq_factor);
  if (rope.type == RopeType::yarn)
    json.set("beta_fast", rope.beta_fast)
        .set("beta_slow", rope.beta_slow)
        .set("attention_factor", rope.attention_factor)
        .set("truncate", rope.truncate);
  if (rope.type != RopeType::linear) json.set("original_max_position_embeddings", rope.original_max_position);
  return json;
}

// Sets the window and the layers that have it, as the family's class in transformers does. A list of layer types wins.
// Without it the qwen families have a window if use_sliding_window says so, from layer max_window_layers on, and the
// mistral families have it in all layers.
void read_windows(const Json& json, ModelConfig& config) {
  if (!config.family->windows) return;
  constexpr int kMissing = 4096;
  const bool qwen = config.family->max_window_layers > 0;
  const bool absent = json.contains("sliding_window") && !has(json, "sliding_window");  // it is null
  const bool off = absent || (qwen && !json.get_bool("use_sliding_window", false));
  const int window = off ? 0 : read_size(json, "sliding_window", kMissing);
  std::vector<Layer> layers;
  if (has(json, "layer_types")) {
    for (const Json& type : json.at("layer_types").elements()) {
      const std::string name = type.as_string();
      REQUIRE(name == "full_attention" || name == "sliding_attention",
              "%s: layer_types has \"%s\", expected \"full_attention\" or \"sliding_attention\"", json.where().c_str(),
              name.c_str());
      layers.push_back({.windowed = name == "sliding_attention"});
    }
    REQUIRE(layers.size() == size_t(config.L), "%s: layer_types has %zu entries for %d layers", json.where().c_str(),
            layers.size(), config.L);
  } else {
    const int first = qwen ? read_int(json, "max_window_layers", config.family->max_window_layers, 0) : 0;
    for (int layer = 0; layer < config.L; ++layer) layers.push_back({.windowed = window > 0 && layer >= first});
  }
  if (std::none_of(layers.begin(), layers.end(), [](const Layer& layer) { return layer.windowed; })) return;
  REQUIRE(window > 0, "%s: layer_types names sliding attention, but there is no sliding_window%s", json.where().c_str(),
          qwen ? ", or use_sliding_window is not true" : "");
  config.window = window, config.layers = layers;
}

// Returns the first layer from which on all have the window, for readers that do not know layer_types; L if there is
// none.
int first_windowed(const ModelConfig& config) {
  int first = config.L;
  while (first > 0 && config.window_of(first - 1) > 0) --first;
  return first;
}

void write_windows(const ModelConfig& config, Json& json) {
  if (!config.family->windows) return;
  const bool qwen = config.family->max_window_layers > 0, any = config.window > 0;
  json.set("sliding_window", any ? Json(config.window) : Json());
  if (qwen) json.set("use_sliding_window", any).set("max_window_layers", first_windowed(config));
  if (!config.family->layer_types) return;
  Json types = Json::array();
  for (int layer = 0; layer < config.L; ++layer)
    types.push_back(config.window_of(layer) ? "sliding_attention" : "full_attention");
  json.set("layer_types", types);
}

}  // namespace

std::vector<int> read_tokens(const Json& json) {
  if (json.is_null()) return {};
  if (!json.is_array()) return {read_token(json)};
  std::vector<int> tokens;
  for (const Json& token : json.elements()) tokens.push_back(read_token(token));
  return tokens;
}

namespace {

// Other classes have another head, or none: their weights are no causal language model's.
void require_language_model(const Json& json) {
  if (!has(json, "architectures")) return;
  for (const Json& architecture : json.at("architectures").elements()) {
    const std::string name = architecture.as_string();
    REQUIRE(name.ends_with("ForCausalLM"),
            "%s: architectures names %s, which is no causal language model\n  expected a class ForCausalLM; if the "
            "weights are one's, write its name there",
            json.where().c_str(), name.c_str());
  }
}

}  // namespace

ModelConfig ModelConfig::from_json(const Json& json, const std::string& name) {
  std::string type = json.get_string("model_type", "llama");
  if (type == "mistral" && has(json, "layer_types")) type = "ministral";  // transformers, too, takes that class then
  ModelConfig config;
  config.name = name;
  config.family = find_family(type);
  std::string known;
  for (const Family& family : kFamilies) known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  REQUIRE(config.family, "%s: model_type \"%s\" is not computed here\n  expected one of: %s", json.where().c_str(),
          type.c_str(), known.c_str());
  const Family& family = *config.family;
  require_language_model(json);
  config.C = read_size(json, "hidden_size", 0, kMostWidth);
  config.L = read_size(json, "num_hidden_layers", 0, kMostLayers);
  config.NH = read_size(json, "num_attention_heads", 0, kMostWidth);
  // A missing number means the family's, null means one for each query head.
  const bool one_each = family.NKV == 0 || json.contains("num_key_value_heads");
  config.NKV = read_size(json, "num_key_value_heads", one_each ? config.NH : family.NKV, kMostWidth);
  REQUIRE(has(json, "head_dim") || family.HD || config.C % config.NH == 0,
          "%s: hidden_size %d is no multiple of num_attention_heads %d, and there is no head_dim\n  correct one of the "
          "two, or say the size of a head with head_dim",
          json.where().c_str(), config.C, config.NH);
  config.HD = read_size(json, "head_dim", family.HD ? family.HD : config.C / config.NH);
  config.FF = read_size(json, "intermediate_size", 0, kMostWidth);
  config.V = read_size(json, "vocab_size", 0, kMostVocabulary);
  config.max_positions = read_size(json, "max_position_embeddings", family.max_positions);
  config.norm_eps = json.get_double("rms_norm_eps", family.norm_eps);
  config.init_std = json.get_double("initializer_range", 0.02);
  config.tied = json.get_bool("tie_word_embeddings", false);
  config.rope = read_rope(json, config.max_positions);
  read_windows(json, config);
  config.bos = read_int(json, "bos_token_id", -1, -1);
  config.pad = json.contains("pad_token_id") ? read_int(json, "pad_token_id", -1, -config.V) : family.pad;
  if (has(json, "pad_token_id") && config.pad < 0) config.pad += config.V;  // PyTorch counts it from the end
  if (const Json* eos = json.find("eos_token_id")) config.eos = read_tokens(*eos);
  require_known_keys(json, family);
  config.check();
  return config;
}

Json ModelConfig::to_json() const {
  const Json rope_parameters = write_rope(rope);
  Json json = Json::object();
  json.set("architectures", Json::array().push_back(family->architecture))
      .set("model_type", family->model_type)
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
      .set("mlp_bias", false)
      .set("rope_theta", rope.theta)
      .set("rope_parameters", rope_parameters)
      .set("dtype", "float32")
      .set("torch_dtype", "float32");
  if (!family->qkv_bias) json.set("attention_bias", false);  // the class of qwen2 has its biases without this key
  write_windows(*this, json);
  // Older versions of transformers read the scaling from this key.
  if (rope.type != RopeType::plain) json.set("rope_scaling", rope_parameters);
  json.set("bos_token_id", bos >= 0 ? Json(bos) : Json());
  // A family with a padding token of its own has none only if the file says so.
  if (pad >= 0 || family->pad >= 0) json.set("pad_token_id", pad >= 0 ? Json(pad) : Json());
  Json eos_json;
  for (int e : eos) eos_json.push_back(e);
  json.set("eos_token_id", eos.size() == 1 ? Json(eos[0]) : eos_json);
  return json;
}
