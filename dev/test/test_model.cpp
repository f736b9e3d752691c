// Covers: the model's shape: presets against their published sizes, Hugging Face's configs old and new, those of 91
// public models, keys that ask for what is not computed, the tables of tensors and of projections
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <tuple>

#include "dev/test/test.h"
#include "llmc/config/config.h"
#include "llmc/config/context_part.h"
#include "llmc/config/parameters.h"
#include "llmc/kernels/attention.h"

namespace {

Json newest() {
  return Json::parse(R"({
    "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 24, "intermediate_size": 96, "vocab_size": 101, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "dtype": "float32", "eos_token_id": [3, 4], "bos_token_id": 1,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                        "high_freq_factor": 4.0, "original_max_position_embeddings": 128}})",
                     "config.json");
}

Json with(Json json, const char* key, Json value) { return json.set(key, std::move(value)); }

ModelConfig read(const Json& json) { return ModelConfig::from_json(json, "test"); }

// The config, which is the same when it was written and read again.
ModelConfig read_again(const Json& json) {
  const ModelConfig config = read(json);
  CHECK(read(Json::parse(config.to_json().dump(), "again")).to_json() == config.to_json());
  return config;
}

std::string refusal(const Json& json) {
  return error_of([&] { read(json); });
}

}  // namespace

TEST_CASE("presets have their published numbers of parameters") {
  const std::map<std::string, int64_t> published = {
      {"llama2-7b", 6738415616},     {"llama3.2-1b", 1235814400},     {"llama3.2-3b", 3212749824},
      {"llama3-8b", 8030261248},     {"llama3-70b", 70553706496},     {"llama3.1-8b", 8030261248},
      {"llama3.1-70b", 70553706496}, {"llama3.1-405b", 405853388800}, {"smollm2-135m", 134515008},
      {"smollm2-360m", 361821120},   {"smollm2-1.7b", 1711376384},    {"mistral-7b-v0.3", 7248023552},
      {"qwen2.5-0.5b", 494032768},   {"qwen2.5-1.5b", 1543714304},    {"qwen2.5-3b", 3085938688},
      {"qwen2.5-7b", 7615616512},    {"qwen2.5-14b", 14770033664},    {"qwen2.5-32b", 32763876352},
      {"qwen2.5-72b", 72706203648},  {"qwen3-0.6b", 596049920},       {"qwen3-1.7b", 1720574976},
      {"qwen3-4b", 4022468096},      {"qwen3-8b", 8190735360},        {"qwen3-14b", 14768307200},
      {"qwen3-32b", 32762123264},    {"olmo2-1b", 1484916736},        {"olmo2-7b", 7298617344},
      {"olmo2-13b", 13716198400},
  };
  CHECK(published.size() + 1 == ModelConfig::presets().size());  // and tiny

  for (const auto& [name, parameters] : published) {
    CAPTURE(name);
    CHECK(ModelConfig::preset(name).parameters() == parameters);
  }
  const int64_t tiny = ModelConfig::preset("tiny").parameters();
  CHECK(tiny >= 700'000);
  CHECK(tiny <= 1'000'000);
  for (const std::string& name : ModelConfig::presets()) ModelConfig::preset(name).check();
  says(error_of([] { ModelConfig::preset("llama3-8"); }), "did you mean llama3-8b");
}

TEST_CASE("the newest names of Hugging Face's config") {
  const ModelConfig c = read(newest());
  CHECK(std::vector{c.C, c.L, c.NH, c.NKV, c.HD, c.FF, c.V} == std::vector{64, 2, 4, 2, 24, 96, 101});
  CHECK(c.norm_eps == 1e-5);
  CHECK(c.tied);
  CHECK(c.rope.type == RopeType::llama3);
  CHECK(std::vector<double>{c.rope.theta, c.rope.factor, double(c.rope.original_max_position)} ==
        std::vector<double>{500000, 8, 128});
  CHECK(c.eos == std::vector<int>{3, 4});
  CHECK(c.bos == 1);
}

TEST_CASE("the older names mean the same") {
  const Json today = newest();
  Json old = Json::object();
  for (const auto& [key, value] : today.items())
    if (key != "rope_parameters" && key != "dtype") old.set(key, value);
  old.set("rope_theta", 500000.0).set("torch_dtype", "float32");
  old.set("rope_scaling", Json::object()
                              .set("type", "llama3")
                              .set("factor", 8.0)
                              .set("low_freq_factor", 1.0)
                              .set("high_freq_factor", 4.0)
                              .set("original_max_position_embeddings", 128));
  const ModelConfig a = ModelConfig::from_json(newest(), "a"), b = ModelConfig::from_json(old, "b");
  CHECK(a.to_json() == b.to_json());
}

TEST_CASE("a config that is written reads back") {
  for (const std::string& name : ModelConfig::presets()) {
    CAPTURE(name);
    const Json json = ModelConfig::preset(name).to_json();
    CHECK(read_again(Json::parse(json.dump(2), name)).to_json() == json);
  }
}

TEST_CASE("the model that benchmarks give to PyTorch is the preset") {
  ModelConfig file = ModelConfig::from_json(Json::read("dev/bench/llama3.2-1b.json"), "file");
  ModelConfig preset = ModelConfig::preset("llama3.2-1b");
  file.name = preset.name;
  file.bos = preset.bos, file.eos = preset.eos;  // which the file does not name
  CHECK(file.to_json() == preset.to_json());
}

TEST_CASE("a key that asks for what is not computed is refused by name, and passes with a value that switches it off") {
  const auto json = [](const char* text) { return Json::parse(text, "value"); };
  const std::tuple<const char*, const char*, std::vector<const char*>> keys[] = {
      {"sliding_window", "4096", {"null"}},
      {"is_causal", "false", {"true", "null"}},
      {"layer_types",
       R"(["full_attention", "sliding_attention"])",
       {R"(["full_attention", "full_attention"])", "null"}},
      {"per_layer_config", R"({"1": {"num_attention_heads": 2}})", {"{}", "null"}},
      {"final_logit_softcapping", "30.0", {"null"}},
      {"use_qk_norm", "true", {"false", "null"}},
      {"qk_layernorm", "true", {"false", "null"}},
      {"no_rope_layers", "[1, 0]", {"[1, 1]", "[]", "null"}},
      {"logit_scale", "0.0625", {"1", "1.0", "null"}},
      {"partial_rotary_factor", "0.5", {"1.0", "null"}},
      {"rope_interleaved", "true", {"false"}},
      {"use_mrope", "true", {"false"}},
      {"attention_bias", "true", {"false"}},
      {"mlp_bias", "true", {"false"}},
      {"attention_dropout", "0.1", {"0", "0.0", "null"}},
      {"hidden_act", "\"gelu\"", {"\"silu\""}},
      {"quantization_config", R"({"quant_method": "gptq"})", {"null", "{}"}},
      {"a_key_of_tomorrow", "0", {"false", "null", "[]"}},
  };
  for (const auto& [key, on, all_off] : keys) {
    CAPTURE(key);
    says(refusal(with(newest(), key, json(on))), std::string(key) + " is " + json(on).dump(),
         "remove it from the file");
    for (const char* off : all_off) CHECK(refusal(with(newest(), key, json(off))) == "");
  }
  CHECK(refusal(with(newest(), "quantization_config", json(R"({"quant_method": "gguf", "dequantize": false})"))) == "");
  CHECK(refusal(with(newest(), "_model_name_or_path", "SmolLM2")) == "");
  const std::tuple<const char*, Json, const char*> impossible[] = {{"model_type", "mixtral", "mixtral"},
                                                                   {"num_key_value_heads", 3, "not a multiple of 3"},
                                                                   {"head_dim", 12, "head size 12"},
                                                                   {"hidden_size", -1, "-1"}};
  for (const auto& [key, value, error] : impossible) says(refusal(with(newest(), key, value)), error);
  const Json uneven = with(newest(), "hidden_size", 66);
  CHECK(refusal(uneven) == "");
  says(refusal(with(uneven, "head_dim", Json())), "hidden_size 66 is no multiple of num_attention_heads 4");
  const auto rope = [&](const char* text) { return refusal(with(newest(), "rope_parameters", json(text))); };
  says(rope(R"({"rope_type": "default", "partial_rotary_factor": 0.5})"), "partial_rotary_factor is 0.5");
  says(rope(R"({"rope_type": "default", "mrope_section": [1, 2]})"), "mrope_section");
  says(rope(R"({"rope_type": "dynamic", "factor": 4.0})"), "rope_type \"dynamic\"");
  says(rope(R"({"rope_type": "yarn", "rope_theta": 1e4})"), "factor");
  CHECK(rope(R"({"rope_type": "linear", "factor": 1.0, "partial_rotary_factor": 1})") == "");
}

TEST_CASE("public models' configs are taken, or refused for the right reason") {
  std::map<std::string, int> taken, refused;
  std::vector<Json> models;
  for (const char* file : {"dev/test/configs/llama.jsonl", "dev/test/configs/families.jsonl"}) {
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) models.push_back(Json::parse(line, file));
  }
  for (const Json& model : models) {
    CAPTURE(model.get_string("name"));
    const std::string type = model.at("config").get_string("model_type");
    if (model.contains("refused")) {
      ++refused[type];
      says(refusal(model.at("config")), model.get_string("refused"));
      continue;
    }
    ++taken[type];
    CHECK(refusal(model.at("config")) == "");
    says(refusal(with(model.at("config"), "a_key_of_tomorrow", 0.5)), "a_key_of_tomorrow is 0.5");
    // Fine-tuning tools add keys like these.
    CHECK(refusal(with(with(model.at("config"), "use_mrope", false), "temperature", 0.6)) == "");
    CHECK(read(model.at("config")).parameters() == model.get_int("parameters"));
  }
  CHECK(taken == std::map<std::string, int>{{"llama", 38}, {"mistral", 7}, {"olmo2", 4}, {"qwen2", 14}, {"qwen3", 8}});
  CHECK(refused.size() >= 15);  // kinds of models
}

TEST_CASE("a family has its own values for keys that are missing, as transformers does") {
  using Sizes = std::vector<int>;  // NKV, HD, the most positions, the padding token, the window
  const std::tuple<const char*, Sizes, double> families[] = {
      {"llama", {32, 128, 2048, -1, 0}, 1e-6},         {"mistral", {8, 128, 131072, -1, 4096}, 1e-6},
      {"ministral", {8, 128, 131072, -1, 4096}, 1e-6}, {"qwen2", {32, 128, 32768, -1, 0}, 1e-6},
      {"qwen3", {32, 128, 32768, -1, 0}, 1e-6},        {"olmo2", {32, 128, 2048, 1, 0}, 1e-5}};
  for (const auto& [type, sizes, norm_eps] : families) {
    CAPTURE(type);
    Json json = Json::parse(R"({"hidden_size": 4096, "num_hidden_layers": 3, "num_attention_heads": 32,
                                "intermediate_size": 64, "vocab_size": 100})",
                            "config.json");
    const ModelConfig c = read_again(json.set("model_type", type));
    CHECK(Sizes{c.NKV, c.HD, c.max_positions, c.pad, c.window} == sizes);
    CHECK(c.norm_eps == norm_eps);
    CHECK(c.rope.theta == 10000);
    CHECK(!c.tied);
  }
}

TEST_CASE("windows by layer, as each family's keys say") {
  // `layers` spells the list of layer_types: s is sliding, f full, c chunked.
  const auto config = [](const char* type, const char* keys, const std::string& layers = "") {
    Json json = Json::parse(keys, "config.json"), types = Json::array();
    json.set("model_type", type).set("hidden_size", 64).set("num_hidden_layers", 4).set("num_attention_heads", 4);
    json.set("num_key_value_heads", 4).set("head_dim", 16).set("intermediate_size", 64).set("vocab_size", 100);
    for (const char c : layers)
      types.push_back(std::string(c == 's' ? "sliding" : c == 'f' ? "full" : "chunked") + "_attention");
    return read_again(layers.empty() ? json : json.set("layer_types", types));
  };
  using Windows = std::vector<int>;
  const auto windows = [&](const char* type, const char* keys, const std::string& layers = "") {
    const ModelConfig c = config(type, keys, layers);
    Windows all;
    for (int layer = 0; layer < c.L; ++layer) all.push_back(c.window_of(layer));
    return all;
  };
  const auto refused = [&](const char* type, const char* keys, const std::string& layers = "") {
    return error_of([&] { config(type, keys, layers); });
  };
  const Windows none(4, 0), all(4, 7), last{0, 0, 7, 7}, other{7, 0, 7, 0};
  const char *const seven = R"({"sliding_window": 7})",
                    *const used = R"({"sliding_window": 7, "use_sliding_window": true})",
                    *const upper_used = R"({"sliding_window": 7, "use_sliding_window": true, "max_window_layers": 2})";
  CHECK(windows("mistral", seven) == all);
  CHECK(windows("mistral", R"({"sliding_window": null})") == none);
  CHECK(windows("mistral", "{}") == Windows(4, 4096));
  for (const char* type : {"mistral", "ministral"}) CHECK(windows(type, seven, "sfsf") == other);
  for (const char* type : {"qwen2", "qwen3"}) {
    CAPTURE(type);
    for (const char* keys : {seven, used,  // used from layer 28 on
                             R"({"sliding_window": 7, "use_sliding_window": false, "max_window_layers": 0})",
                             R"({"use_sliding_window": true, "sliding_window": null, "max_window_layers": 0})",
                             R"({"use_sliding_window": false, "sliding_window": 0})"})
      CHECK(windows(type, keys) == none);
    CHECK(windows(type, upper_used) == last);
    CHECK(windows(type, upper_used, "sfsf") == other);
    says(refused(type, seven, "f"), "1 entries");
    says(refused(type, seven, "sfff"), "there is no sliding_window", "use_sliding_window");
    says(refused(type, used, "cfff"), "chunked_attention");
  }
  says(refused("mistral", R"({"sliding_window": 0})"), "sliding_window is 0");
  says(refused("mistral", R"({"sliding_window": 4294967301})"), "sliding_window is 4294967301");
  says(refused("qwen2", R"({"use_sliding_window": true, "max_window_layers": -1})"), "max_window_layers is -1");
  says(refused("llama", seven), "sliding_window is 7");
  says(refused("olmo2", upper_used, "sfsf"), "sliding_window is 7");
  says(refused("mistral", upper_used, "sfsf"), "use_sliding_window");
  // A reader that knows no list of layers sees windows in the layers after the last one without.
  ModelConfig upper = config("qwen2", upper_used);
  CHECK(upper.to_json().get_int("max_window_layers") == 2);
  upper.set_layers(5);
  CHECK(upper.window_of(4) == 7);
  upper.set_layers(2);  // the layers that are left have none
  CHECK(upper.window == 0);
  CHECK(!upper.to_json().get_bool("use_sliding_window", true));
  upper.check();
}

TEST_CASE("kinds of RoPE") {
  const auto rope = [](const char* parameters) {
    return read_again(with(newest(), "rope_parameters", Json::parse(parameters, "rope"))).rope;
  };
  CHECK(rope(R"({"rope_type": "linear", "factor": 4.0})").type == RopeType::linear);
  const RopeScaling yarn = rope(R"({"rope_type": "yarn", "factor": 4.0, "beta_fast": 16})");
  CHECK(yarn.original_max_position == 512);  // as many as max_position_embeddings
  CHECK(yarn.beta_fast == 16);
  CHECK(yarn.beta_slow == 1);
  CHECK(yarn.truncate);
  CHECK(yarn.attention_factor == doctest::Approx(0.1 * std::log(4.0) + 1));
  CHECK(rope(R"({"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.5})").attention_factor == 0.5);
  // transformers 5.23 computes 0.9167912505 of these.
  CHECK(rope(R"({"rope_type": "yarn", "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 1.2})").attention_factor ==
        doctest::Approx(0.9167912505).epsilon(1e-9));
  // As in transformers null is false, and a missing key is true.
  CHECK(!rope(R"({"rope_type": "yarn", "factor": 4.0, "truncate": null})").truncate);
  CHECK(!rope(R"({"rope_type": "yarn", "factor": 4.0, "truncate": false})").truncate);
  // The older name wins if both are there, but for one without a key.
  Json empty = with(newest(), "rope_scaling", Json::object());
  CHECK(read(empty).rope.type == RopeType::llama3);
  Json both = with(newest(), "rope_scaling", Json::parse(R"({"type": "linear", "factor": 2.0})", "rope"));
  CHECK(read(both).rope.type == RopeType::linear);
}

TEST_CASE("classes that are no causal language model are refused by name") {
  for (const char* name : {"LlamaForSequenceClassification", "Qwen2ForTokenClassification", "LlamaModel"})
    says(refusal(with(newest(), "architectures", Json::array().push_back(name))), name);
  CHECK(read(with(newest(), "architectures", Json::array().push_back("LlamaForCausalLM"))).L == 2);
  CHECK(read(with(newest(), "architectures", Json())).L == 2);
}

TEST_CASE("sizes beyond every model are refused by their limits") {
  const std::pair<const char*, int64_t> limits[] = {{"hidden_size", kMostWidth},
                                                    {"intermediate_size", kMostWidth},
                                                    {"num_hidden_layers", kMostLayers},
                                                    {"vocab_size", kMostVocabulary}};
  for (const auto& [key, most] : limits) {
    CAPTURE(key);
    CHECK(refusal(with(newest(), key, most)).empty());
    for (const int64_t wrong : {most + 1, int64_t(INT32_MAX), int64_t(INT64_MAX), int64_t(0), int64_t(INT64_MIN)})
      says(refusal(with(newest(), key, wrong)), key, format("expected 1 to %lld", (long long)most));
  }
  // 2^26 heads of 64 would be 2^32 columns, which are 0 in 32 bits.
  const Json heads = with(with(newest(), "num_key_value_heads", 1), "head_dim", 64);
  CHECK(refusal(with(heads, "num_attention_heads", kMostWidth / 64)).empty());
  says(refusal(with(heads, "num_attention_heads", kMostWidth / 64 + 1)), "16385 heads of 64", "at most 1048576");
  says(refusal(with(heads, "num_attention_heads", 1 << 26)), "num_attention_heads is 67108864");
  says(refusal(with(newest(), "eos_token_id", int64_t(1) << 32)), "is 4294967296\n  expected the number of a token");
  // A config whose keys name windows by layer has a list of them before its sizes are compared.
  const Json windows = Json::parse(R"({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 8,
    "max_window_layers": 0, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 256, "num_hidden_layers": 2147483647})",
                                   "config.json");
  says(refusal(windows), "num_hidden_layers is 2147483647, expected 1 to 10000");
  ModelConfig config = ModelConfig::preset("tiny");
  says(error_of([&] { config.set_layers(kMostLayers + 1); }), "10001 layers");
}

TEST_CASE("pad_token_id is kept") {
  // PyTorch counts a negative one from the end.
  CHECK(read(with(newest(), "pad_token_id", -1)).pad == 100);
  says(refusal(with(newest(), "pad_token_id", 101)), "pad_token_id 101 is beyond the vocabulary of 101");
  says(refusal(with(newest(), "pad_token_id", -102)), "pad_token_id is -102");
  CHECK(!read(newest()).to_json().contains("pad_token_id"));
  CHECK(read(with(newest(), "pad_token_id", 7)).to_json().get_int("pad_token_id") == 7);
}

TEST_CASE("the layout places every weight once, fused ones side by side") {
  for (bool tied : {false, true}) {
    ModelConfig config = read(with(newest(), "tie_word_embeddings", tied));
    const ParameterLayout layout(config);
    int64_t parameters = 0;
    size_t end = 0;
    std::set<std::string> names;
    for (const ParameterInfo& t : layout.tensors) {
      CAPTURE(t.name);
      const size_t begin = layout.units[size_t(t.unit)].offset + t.offset;
      CHECK(begin >= end);
      end = begin + t.size();
      parameters += int64_t(t.size());
      CHECK(names.insert(t.name).second);
    }
    CHECK(end <= layout.size);
    CHECK(parameters == config.parameters());
    CHECK(names.count("lm_head.weight") == (tied ? 0 : 1));
    CHECK(layout.units.size() == size_t(config.L) + 2);
    const ParameterInfo &q = layout.tensor("model.layers.1.self_attn.q_proj.weight"),
                        &k = layout.tensor("model.layers.1.self_attn.k_proj.weight"),
                        &v = layout.tensor("model.layers.1.self_attn.v_proj.weight");
    CHECK(k.offset == q.offset + q.size());
    CHECK(v.offset == k.offset + k.size());
    CHECK(layout.offset(layout.block_unit(1), "qkv") == q.offset);
    for (const char* product : {"norm1", "qkv", "o", "norm2", "gate_up", "down"})
      CHECK(layout.offset(layout.block_unit(0), product) % ParameterLayout::kAlignment == 0);
  }
}

TEST_CASE("the FP8 tensors of a layer's products have the numbers that checkpoints have of them") {
  const ModelConfig config = read(newest());
  const ParameterLayout layout(config);
  const LayerProjections& projections = layout.projections;
  CHECK(projections.count() == 4 * config.L);
  CHECK(projections.ids() == 12 * config.L);
  for (const LayerProjection& p : projections.all())
    for (const Role role : kEachRole) {
      CHECK(p.id(role) == (p.layer * 4 + int(p.which)) * 3 + int(role));
      CHECK(projections.role(p.id(role)) == role);
      CHECK(projections.find(p.layer, p.which) == &p);
    }
  const LayerProjection& qkv = *projections.find(1, Projection::qkv);
  CHECK(qkv.OC == config.qkv_width());
  CHECK(qkv.IC == config.C);
  CHECK(layout.tensor("model.layers.1.self_attn.k_proj.weight").projection == &qkv);
  CHECK(layout.tensor("model.layers.1.input_layernorm.weight").projection == nullptr);
  CHECK(projections.of(1)[0].index == qkv.index);
  CHECK(projections.of(0, 2).size() == 8);
  CHECK(projections.of(-1).empty());
  CHECK(projections.name(projections.find(1, Projection::down)->id(Role::output_gradient)) ==
        "the output gradient of down in block 1");
}

TEST_CASE("the parts of units hold every element of every weight once, for any number of parts") {
  for (const bool tied : {false, true})
    for (const int parts : {1, 2, 3, 4, 7, 8, 64}) {
      ModelConfig config = ModelConfig::preset("tiny");
      config.C = 40, config.L = 2, config.NH = 6, config.HD = 16, config.FF = 52, config.V = 97, config.tied = tied;
      const ParameterLayout layout(config, parts);
      CAPTURE(parts);
      std::map<std::string, std::vector<int>> seen;
      for (const ParameterInfo& t : layout.tensors) seen[t.name].resize(t.size());
      size_t end = 0;
      for (int unit = 0; unit < int(layout.units.size()); ++unit) {
        const size_t size = layout.part_size(unit);
        CHECK(layout.units[size_t(unit)].offset == end);
        CHECK(layout.units[size_t(unit)].size == size * size_t(parts));
        CHECK(size % ParameterLayout::kAlignment == 0);
        end += size * size_t(parts);
        for (int part = 0; part < parts; ++part)
          for (const Slice& slice : layout.slices(unit, size_t(part) * size, size)) {
            CHECK(slice.tensor->offset + slice.first == size_t(part) * size + slice.at);
            CHECK(slice.at + slice.count <= size);
            for (size_t i = 0; i < slice.count; ++i) ++seen[slice.tensor->name].at(slice.first + i);
          }
      }
      CHECK(layout.size == end);
      for (const auto& [name, counts] : seen) {
        CAPTURE(name);
        CHECK(std::all_of(counts.begin(), counts.end(), [](int n) { return n == 1; }));
      }
    }
}

TEST_CASE("the ranks of a tensor-parallel group hold every element, copies as often as they say, in equal units") {
  for (const bool tied : {false, true})
    for (const int NKV : {1, 2, 8})
      for (const int degree : {1, 2, 4, 8}) {
        ModelConfig config = ModelConfig::preset("tiny");
        config.C = 40, config.L = 2, config.NH = 8, config.NKV = NKV, config.HD = 16, config.FF = 56, config.V = 97;
        config.tied = tied;
        CAPTURE(NKV);
        CAPTURE(degree);
        const ParameterLayout whole(config);
        std::map<std::string, std::vector<int>> seen, first_copies;
        for (const ParameterInfo& t : whole.tensors)
          seen[t.name].resize(t.size()), first_copies[t.name].resize(t.size());
        for (int rank = 0; rank < degree; ++rank) {
          const ParameterLayout layout(config, 3, {degree, rank}), of_first(config, 3, {degree, 0});
          CHECK(layout.tensors.size() == whole.tensors.size());
          for (size_t unit = 0; unit < layout.units.size(); ++unit)
            CHECK(layout.units[unit].size == of_first.units[unit].size);
          for (const ParameterInfo& t : layout.tensors) {
            CHECK(t.whole_shape() == whole.tensor(t.name).whole_shape());
            CHECK(t.offset == of_first.tensor(t.name).offset);
            for (size_t i = 0; i < t.size(); ++i) {
              ++seen[t.name].at(t.window(0)[i]);
              first_copies[t.name].at(t.window(0)[i]) += t.copy == 0;
            }
          }
          // Query heads find their key and value heads here.
          const ParameterInfo &q = layout.tensor("model.layers.0.self_attn.q_proj.weight"),
                              &k = layout.tensor("model.layers.0.self_attn.k_proj.weight");
          CHECK(q.first_row / 16 / (8 / NKV) == k.first_row / 16);
          CHECK((q.first_row + q.rows - 1) / 16 / (8 / NKV) == (k.first_row + k.rows - 1) / 16);
          size_t elements = 0;
          for (const Slice& slice : layout.slices(1, 500, 1000))
            slice.window().for_runs(slice.count, [&](size_t i, uint64_t first, size_t count) {
              for (size_t j = 0; j < count; ++j) CHECK(slice.window()[i + j] == first + j);
              elements += count;
            });
          CHECK(elements > 0);
        }
        for (const ParameterInfo& t : ParameterLayout(config, 1, {degree, 0}).tensors) {
          CAPTURE(t.name);
          const auto all = [](const std::vector<int>& counts, int n) {
            return std::all_of(counts.begin(), counts.end(), [&](int count) { return count == n; });
          };
          CHECK(all(seen[t.name], t.copies));
          CHECK(all(first_copies[t.name], 1));
        }
      }
}

TEST_CASE("a degree of tensor parallelism that does not fit is refused with those that would") {
  const ModelConfig config = ModelConfig::preset("llama3-8b");
  const auto refusal = [&](int degree) { return error_of([&] { config.tensor_part(degree, 0); }); };
  says(refusal(3), "choose one of: 1, 2, 4, 8, 16, 32");
  says(refusal(64), "32 query heads");
  CHECK(config.tensor_part(16, 15).NKV == 1);
  CHECK(config.tensor_part(8, 3).V == 128256 / 8);
}

TEST_CASE("sequences that are shared out: each token of one rank, and as many pairs of a query and a key for each") {
  for (const int degree : {1, 2, 3, 4, 8})
    for (const int B : {1, 3}) {
      const int T = 10 * 2 * degree;
      std::vector<int> seen(size_t(B) * size_t(T));
      int64_t pairs_of_first = 0;
      for (int rank = 0; rank < degree; ++rank) {
        const ContextPart part{degree, rank};
        int64_t pairs = 0;
        for (size_t i = 0; i < seen.size() / size_t(degree); ++i) {
          const size_t at = part.place(i, B, T);
          REQUIRE(at < seen.size(), "token %zu", at);
          ++seen[at];
          pairs += int64_t(at % size_t(T)) + 1;
        }
        if (rank == 0) pairs_of_first = pairs;
        CHECK(pairs == pairs_of_first);
        if (part.whole()) continue;
        CHECK(part.place(0, B, T) == size_t(part.first(0, T)));
        CHECK(part.place(size_t(B * part.chunk(T)), B, T) == size_t(part.first(1, T)));
      }
      CHECK(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
    }
}

TEST_CASE("FLOPs a token are 6 N and attention") {
  const ModelConfig c = ModelConfig::preset("llama3-8b");
  const double products = double(c.parameters()) - double(c.V) * c.C - (2.0 * c.L + 1) * c.C;
  CHECK(c.flops_per_token(8192, false) == 6 * products + 12.0 * c.L * c.q_width() * 8192);
  CHECK(c.flops_per_token(8192, true) == 6 * products + 6.0 * c.L * c.q_width() * 8192);
  ModelConfig windowed = c;
  windowed.window = 1024, windowed.layers.resize(size_t(c.L));
  windowed.layers[0].windowed = windowed.layers[3].windowed = true;
  const double pairs = attention_pairs(8192, 8192, 0, 1024) / attention_pairs(8192, 8192, 0);  // of two layers
  CHECK(windowed.flops_per_token(8192, true) ==
        doctest::Approx(6 * products + 6.0 * (c.L - 2 + 2 * pairs) * c.q_width() * 8192).epsilon(1e-4));
}
