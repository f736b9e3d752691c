// The form of the conversations that a run trains on: the chat template that rendered them, and the tokens that end
// their turns. dev/data/prepare --chat writes both next to the shards:
//
//   manifest.json         "chat": {"template": "chat_template.jinja", "end_of_turn": [128009]}
//   chat_template.jinja   the template
//
// A trained model speaks in this form, so its checkpoints and its export have the template, and samples end at these
// tokens.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/config/config.h"
#include "llmc/data/documents.h"
#include "llmc/data/token_dataset.h"

inline constexpr const char* kChatTemplateFile = "chat_template.jinja";

// Returns the template that "chat_template" of a tokenizer_config.json stands for: itself, or of a list of named ones
// the one that is called default, if there is one.
std::optional<std::string> default_template(const Json& chat_template);

struct DataChat {
  std::string folder;            // that the template is from
  std::string source;            // the template
  std::vector<int> end_of_turn;  // token ids
  std::string remark;            // a sentence about other folders with another template; "" if there are none
};

// Returns the form of the conversations that match `pattern`; nothing if no manifest there tells of conversations. If
// folders differ, it is the template of the first one, and the tokens of all. Throws on a template that cannot be read,
// and on a token that is not below `V`.
std::optional<DataChat> chat_of_data(const std::string& pattern, int V);

// Returns how the first conversation of data with masks begins: the tokens before the first one whose loss counts, of
// which at most the last `most`. A `rule` tells where its document begins, if other ones are before it. Empty if
// nothing is before that token, or it is not among the first 2^20.
std::vector<int32_t> beginning_of_conversation(const TokenDataset& data, const std::optional<DocumentRule>& rule,
                                               int64_t most);

// Makes the tokens that end turns the first of those that end a text of the model, in its generation_config.json.
void end_at_turns(const DataChat& chat, ModelConfig& config);
