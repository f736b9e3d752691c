// What --model names: a preset, a directory of Hugging Face safetensors, a run that exported one, or a Hugging Face
// config alone.
#pragma once

#include <optional>
#include <string>

#include "llmc/base/options.h"
#include "llmc/base/safetensors.h"
#include "llmc/model/config.h"

struct ModelSource {
  LlamaConfig config;
  std::optional<Safetensors> weights;  // none: random
  std::string directory;               // of the weights
  std::string description;             // "preset tiny, random weights (normal)"
};

// Throws on anything else, with the presets, and on shards of data with more tokens than the model. --layers and
// --vocab-size change the config.
ModelSource open_model(const Options& options);
