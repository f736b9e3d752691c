// What --model names: a preset, a directory of Hugging Face safetensors, or a Hugging Face config alone.
#pragma once

#include <optional>
#include <string>

#include "llmc/base/options.h"
#include "llmc/base/safetensors.h"
#include "llmc/model/config.h"

struct ModelSource {
  LlamaConfig config;
  std::optional<Safetensors> weights;  // none: random
  std::string description;             // "preset tiny, random weights (normal)"
};

// Throws on anything else, with the presets; --layers changes the config's number of layers.
ModelSource open_model(const Options& options);
