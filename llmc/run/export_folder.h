// Writes what an export has in addition to the weights, so that Hugging Face's tools accept the directory as it is: the
// tokenizer and a model card. Trainer::save writes config.json, generation_config.json and the weights. A checkpoint
// has the same files of the tokenizer.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/config/config.h"
#include "llmc/data/data_chat.h"
#include "llmc/data/text_codec.h"

// The files of the tokenizer's directory. For a model of bytes it is a tokenizer.json that reads bytes, and for a model
// without a tokenizer there are none. tokenizer_config.json makes AutoTokenizer follow tokenizer.json, whatever class
// the files named: with other classes some ids would differ. A run that trains on conversations has the chat template
// of its data instead of the folder's. The files are read before a run and not after it, so that the export cannot find
// them gone or wrong.
class TokenizerFiles {
 public:
  // Throws on a file that cannot be read, on a link out of the folder (own_file()), and on a tokenizer_config.json that
  // is not a JSON object. `chat` may be null.
  TokenizerFiles(const TextCodec& codec, const ModelConfig& config, const DataChat* chat = nullptr);
  void write(const std::string& directory) const;
  std::vector<std::string> names() const;
  // True if the folder has a chat template and it is not that of the data, which takes its place.
  bool replaces_template() const { return replaces_template_; }
  // Returns the names and contents of the files as they were read; none if the tokenizer has no file.
  std::vector<std::pair<std::string, std::string>> sources() const;
  // Returns the paths of those files next to another tokenizer.json that differ from these.
  std::vector<std::string> changed_beside(const std::string& tokenizer_json) const;

 private:
  void set_template(const DataChat& chat, const Json& tokenizer_config);

  // Name and content, as they are written; the last one is tokenizer_config.json.
  std::vector<std::pair<std::string, std::string>> files_;
  bool of_bytes_ = false, replaces_template_ = false;
  std::optional<std::string> config_;  // tokenizer_config.json as it was read
};

// README.md: the model's shape, what it was trained with, and the last results of the run.
struct ModelCard {
  std::string data;            // one sentence
  int64_t steps, tokens;       // that were trained
  Json last_step, last_score;  // lines of train.jsonl; null if there is none
  std::string options;         // those that were changed, in one line
};
void export_model_card(const ModelCard& card, const ModelConfig& config, const std::string& directory);
