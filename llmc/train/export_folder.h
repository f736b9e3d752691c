// What stands beside the weights in an export, so that Hugging Face's tools take the directory as it is: the tokenizer
// and a model card. config.json, generation_config.json and the weights are Trainer::save's.
#pragma once

#include <string>

#include "llmc/base/json.h"
#include "llmc/model/config.h"
#include "llmc/train/text_codec.h"

// The files of the tokenizer's directory, or for a model of bytes a tokenizer.json that reads them. AutoTokenizer is
// told to do what tokenizer.json says, whatever class the files named: others give other ids for some. A model without
// a tokenizer stays without.
void export_tokenizer(const TextCodec& codec, const LlamaConfig& config, const std::string& directory);

// README.md: the model's shape, what it was trained with, and the figures that the run ended with.
struct ModelCard {
  std::string data;            // as the banner describes it
  int64_t steps, tokens;       // trained
  Json last_step, last_score;  // of train.jsonl; null where there is none
  std::string options;         // those that were changed, a line
};
void export_model_card(const ModelCard& card, const LlamaConfig& config, const std::string& directory);
