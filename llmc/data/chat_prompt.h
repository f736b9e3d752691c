// --chat: --prompt as a user's message, in the form of the model's chat template.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/options.h"
#include "llmc/data/data_chat.h"
#include "llmc/data/text_codec.h"

struct ChatTemplateFile {
  std::string path, source;
};
// Returns the chat template of the folder that tokenizer.json is in, as Hugging Face's tools look for it:
// chat_template.jinja, else chat_template of tokenizer_config.json (default_template). Nothing if there is none. Throws
// on a list without "default", with the names that it has.
std::optional<ChatTemplateFile> find_chat_template(const std::string& folder);

// Returns the tokens of the messages --system, if there is one, and --prompt, with the generation prompt after them.
// Special tokens that the template writes are tokens, and those that the messages spell are letters, as in
// dev/data/prepare --chat. The template is that of `data`, else the one next to the tokenizer. Throws without one.
std::vector<int32_t> chat_prompt(const Options& options, const TextCodec& codec, const DataChat* data);

// Returns a sentence for the user of --chat in a training, and for one who asks a model that has a chat template
// without
// --chat; "" otherwise. A prompt that spells special tokens is in the template's form already.
std::string chat_hint(const Options& options, const TextCodec& codec);
