// What stands beside the weights in an export, so that Hugging Face's tools take the directory as it is: the tokenizer
// and a model card. config.json, generation_config.json and the weights are Trainer::save's.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/model/config.h"
#include "llmc/train/text_codec.h"

// The files of the tokenizer's directory, or for a model of bytes a tokenizer.json that reads them; none of a model
// without a tokenizer. AutoTokenizer is told to do what tokenizer.json says, whatever class the files named: others
// give other ids for some. They are read before a run, not behind it, so that the export does not find them gone or
// wrong.
class TokenizerFiles {
 public:
  // Throws on a file that cannot be read, and on a tokenizer_config.json that is no JSON object.
  TokenizerFiles(const TextCodec& codec, const LlamaConfig& config);
  void write(const std::string& directory) const;
  std::vector<std::string> names() const;

 private:
  std::vector<std::pair<std::string, std::string>> files_;  // name, content
};

// README.md: the model's shape, what it was trained with, and the figures that the run ended with.
struct ModelCard {
  std::string data;            // a sentence
  int64_t steps, tokens;       // trained
  Json last_step, last_score;  // of train.jsonl; null where there is none
  std::string options;         // those that were changed, a line
};
void export_model_card(const ModelCard& card, const LlamaConfig& config, const std::string& directory);
