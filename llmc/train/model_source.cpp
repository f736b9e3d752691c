#include "llmc/train/model_source.h"

#include <algorithm>
#include <filesystem>

#include "llmc/base/error.h"

namespace fs = std::filesystem;

namespace {

// Weights of a deeper model than is asked for: only the first layers are of use.
void require_enough_layers(const Safetensors& weights, const LlamaConfig& config) {
  const std::string last = format("model.layers.%d.input_layernorm.weight", config.L - 1);
  REQUIRE(weights.find(last), "--layers %d: %s has no layer %d", config.L, weights.path().c_str(), config.L - 1);
}

}  // namespace

ModelSource open_model(const Options& options) {
  ModelSource source;
  std::error_code error;
  const std::string& name = options.model;
  // A preset's name means the preset, whatever lies in the working directory: ./tiny is a directory.
  const auto presets = LlamaConfig::presets();
  const bool preset = std::find(presets.begin(), presets.end(), name) != presets.end();
  const bool directory = !preset && fs::is_directory(name, error);
  if (directory) {
    const std::string config = (fs::path(name) / "config.json").string();
    source.config = LlamaConfig::from_json(Json::read(config), name);
    source.weights.emplace(name);
    source.description = "weights of " + name;
  } else if (!preset && (name.ends_with(".json") || fs::is_regular_file(name, error))) {
    source.config = LlamaConfig::from_json(Json::read(name), fs::path(name).stem().string());
    source.description = format("config %s, random weights (%s)", name.c_str(), options.init.c_str());
  } else {
    source.config = LlamaConfig::preset(name);
    source.description = format("preset %s, random weights (%s)", name.c_str(), options.init.c_str());
  }
  if (!is_auto(options.layers)) {
    source.description += format(", %lld of %d layers", (long long)options.layers, source.config.L);
    source.config.L = int(options.layers);
    if (source.weights) require_enough_layers(*source.weights, source.config);
  }
  return source;
}
