// Opens what --model names: a preset, a directory of Hugging Face safetensors, a run that exported one, or a Hugging
// Face config alone.
#pragma once

#include <optional>
#include <string>

#include "llmc/base/options.h"
#include "llmc/base/safetensors.h"
#include "llmc/config/config.h"

struct ModelSource {
  ModelConfig config;
  std::optional<Safetensors> weights;  // none: random weights
  bool loaded = false;                 // the run began with such weights, also if it goes on from a checkpoint now
  std::string directory;               // of the weights
  std::string description;             // "preset tiny, random weights (normal)"
};

// --layers and --vocab-size change the config. A preset whose tokens are bytes has as many as the tokenizer that is
// named, or as the data's manifest says, if these are more. Throws on any other name, listing the presets, and if the
// shards of the data have more tokens than the model.
ModelSource open_model(const Options& options);
