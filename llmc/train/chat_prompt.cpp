#include "llmc/train/chat_prompt.h"

#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/base/input_file.h"
#include "llmc/base/utf8.h"
#include "llmc/train/chat_template.h"
#include "llmc/train/special_tokens.h"

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMark = "\xef\xb7\x92";  // U+FDD2, a code point that no text may use

// Returns the message with a mark inside each special token that it spells, so that none is found in the rendering.
std::string with_marks(const std::string& message, const char* option, const SpecialTokens& special) {
  REQUIRE(message.find(kMark) == message.npos, "%s has the code point U+FDD2, which is no character\n  remove it",
          option);
  std::string marked;
  size_t done = 0;
  for (const SpecialTokens::Found& found : special.all(message)) {
    const size_t first = found.at + utf8_start(std::string_view(message).substr(found.at)).bytes;
    marked += message.substr(done, first - done) + std::string(kMark);
    done = first;
  }
  return marked + message.substr(done);
}

std::string without_marks(std::string_view text) {
  std::string plain;
  for (size_t at; (at = text.find(kMark)) != text.npos; text.remove_prefix(at + kMark.size()))
    plain += text.substr(0, at);
  return plain + std::string(text);
}

// Returns the tokens of a rendering: those that it spells without a mark, and between them letters.
std::vector<int32_t> tokens_of(const std::string& rendering, const Tokenizer& tokenizer, const SpecialTokens& special) {
  if (rendering.find(kMark) == rendering.npos) return tokenizer.encode(rendering, false);
  TextEncoder letters(tokenizer, true), tokens(tokenizer);
  std::vector<int32_t> ids;
  const auto between = [&](std::string_view text) {
    if (text.find(kMark) == text.npos) tokens.encode(text, false, ids);
    else letters.encode(without_marks(text), false, ids);
  };
  size_t done = 0;
  for (const SpecialTokens::Found& found : special.all(rendering)) {
    between(std::string_view(rendering).substr(done, found.at - done));
    ids.push_back(found.id);
    done = found.at + found.bytes;
  }
  between(std::string_view(rendering).substr(done));
  return ids;
}

Json message(const char* role, const std::string& content) {
  return Json::object().set("role", role).set("content", content);
}

ChatTemplateFile template_of(const TextCodec& codec, const DataChat* data) {
  if (data) return {data->folder, data->source};
  const std::string folder = fs::path(codec.file()).parent_path();
  std::optional<ChatTemplateFile> found = find_chat_template(folder);
  REQUIRE(
      found,
      "--chat: there is no chat template next to %s, neither chat_template.jinja nor one in tokenizer_config.json\n  "
      "put the template there with which the model was trained, or write the prompt in the model's form, without "
      "--chat",
      codec.file().c_str());
  return *found;
}

}  // namespace

std::optional<ChatTemplateFile> find_chat_template(const std::string& folder) {
  std::error_code error;
  const fs::path own = fs::path(folder) / "chat_template.jinja", config = fs::path(folder) / "tokenizer_config.json";
  if (fs::exists(own, error)) return ChatTemplateFile{own, content_of(own_file(folder, "chat_template.jinja"))};
  if (!fs::exists(config, error)) return {};
  const Json json = Json::read(config);
  const Json* found = json.is_object() ? json.find("chat_template") : nullptr;
  if (!found || found->is_null()) return {};
  if (found->is_string()) return ChatTemplateFile{config, found->as_string()};
  std::string names;
  for (const Json& named : found->elements()) {
    const std::string& name = named.get_string("name");
    if (name == "default") return ChatTemplateFile{config, named.get_string("template")};
    names += (names.empty() ? "" : ", ") + name;
  }
  fail("%s: none of its chat templates is called default: %s\n  put one of them into chat_template.jinja next to it",
       config.c_str(), names.c_str());
}

std::vector<int32_t> chat_prompt(const Options& options, const TextCodec& codec, const DataChat* data) {
  REQUIRE(codec.has_tokenizer(), "--chat: %s\n  name the tokenizer of a model that chats: --tokenizer DIR",
          codec.why_not().empty() ? "the model has no tokenizer here" : codec.why_not().c_str());
  REQUIRE(!options.prompt.empty(), "--chat: there is no message\n  name what the user says: --prompt TEXT");
  const ChatTemplateFile chat = template_of(codec, data);
  const SpecialTokens special(codec.tokenizer());
  Json messages = Json::array();
  if (!options.system.empty()) messages.push_back(message("system", with_marks(options.system, "--system", special)));
  messages.push_back(message("user", with_marks(options.prompt, "--prompt", special)));
  const auto [begin, end] = codec.begin_and_end();
  const std::string rendering = render_chat_template(chat.source, chat.path,
                                                     Json::object()
                                                         .set("messages", messages)
                                                         .set("add_generation_prompt", true)
                                                         .set("bos_token", begin)
                                                         .set("eos_token", end));
  const std::vector<int32_t> ids = tokens_of(rendering, codec.tokenizer(), special);
  REQUIRE(!ids.empty(), "--chat: the chat template %s renders the message as nothing", chat.path.c_str());
  return ids;
}
