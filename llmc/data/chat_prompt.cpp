#include "llmc/data/chat_prompt.h"

#include <algorithm>
#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/base/input_file.h"
#include "llmc/base/utf8.h"
#include "llmc/data/chat_template.h"
#include "llmc/data/special_tokens.h"

namespace fs = std::filesystem;

namespace {

// Code points that no text may use: one breaks the spelling of a special token, the other is around a stand-in's name.
constexpr std::string_view kGuard = "\xef\xb7\x92";          // U+FDD2
constexpr std::string_view kAroundStandIn = "\xef\xb7\x93";  // U+FDD3

// Returns the message with a guard after the first character of each special token that it spells, also of one that
// begins inside another, so that none is found in the rendering.
std::string with_guards(const std::string& message, const char* option, const SpecialTokens& special) {
  REQUIRE(message.find(kGuard) == message.npos && message.find(kAroundStandIn) == message.npos,
          "%s has the code point U+FDD2 or U+FDD3, which are no characters\n  remove it", option);
  std::string marked;
  size_t done = 0;
  for (std::optional<SpecialTokens::Found> found = special.next(message, 0); found;
       found = special.next(message, done)) {
    const size_t first = found->at + utf8_start(std::string_view(message).substr(found->at)).bytes;
    marked += message.substr(done, first - done) + std::string(kGuard);
    done = first;
  }
  return marked + message.substr(done);
}

std::string without_guards(std::string_view text) {
  std::string plain;
  for (size_t at; (at = text.find(kGuard)) != text.npos; text.remove_prefix(at + kGuard.size()))
    plain += text.substr(0, at);
  return plain + std::string(text);
}

// The tokenizer, with another name for each special token that a rendering has. With these stand-ins the rendering can
// be encoded with its special tokens as letters, and what is around a token is treated as ever.
class StandIns {
 public:
  StandIns(const TextCodec& codec, const std::vector<SpecialTokens::Found>& tokens)
      : first_(codec.tokenizer().vocabulary_size()) {
    Json file = Json::read(codec.file()), added = file.at("added_tokens");
    const std::vector<Json> own = added.elements();
    for (const SpecialTokens::Found& token : tokens) {
      if (std::ranges::find(ids_, token.id) != ids_.end()) continue;
      Json entry = *std::ranges::find_if(own, [&](const Json& one) { return one.get_int("id") == token.id; });
      added.push_back(
          entry.set("id", first_ + int32_t(ids_.size())).set("content", name_of(token.id)).set("special", false));
      ids_.push_back(token.id);
    }
    try {
      tokenizer_.emplace(file.set("added_tokens", added));
    } catch (
        const Error&) {  // tokens that are added get the numbers after the model's entries, however they are counted
      fail(
          "%s: its numbers have holes, so words of --prompt or --system that spell special tokens cannot stay text\n  "
          "leave them out",
          codec.file().c_str());
    }
  }

  static std::string name_of(int32_t id) {
    return std::string(kAroundStandIn) + std::to_string(id) + std::string(kAroundStandIn);
  }

  std::vector<int32_t> encode(const std::string& text) const {
    std::vector<int32_t> ids = TextEncoder(*tokenizer_, true).encode(text, false);
    for (int32_t& id : ids)
      if (id >= first_) id = ids_[size_t(id - first_)];
    return ids;
  }

 private:
  int32_t first_;             // the id of the first stand-in
  std::vector<int32_t> ids_;  // what they stand for
  std::optional<Tokenizer> tokenizer_;
};

// Returns the tokens of a rendering. The special tokens that it spells without a guard are tokens.
std::vector<int32_t> tokens_of(const std::string& rendering, const TextCodec& codec, const SpecialTokens& special) {
  if (rendering.find(kGuard) == rendering.npos) return codec.tokenizer().encode(rendering, false);
  const std::vector<SpecialTokens::Found> tokens = special.all(rendering);
  std::string text;
  size_t done = 0;
  for (const SpecialTokens::Found& token : tokens) {
    text += rendering.substr(done, token.at - done) + StandIns::name_of(token.id);
    done = token.at + token.bytes;
  }
  return StandIns(codec, tokens).encode(without_guards(text + rendering.substr(done)));
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
  const fs::path own = fs::path(folder) / kChatTemplateFile, config = fs::path(folder) / "tokenizer_config.json";
  if (fs::exists(own, error)) return ChatTemplateFile{own, content_of(own_file(folder, kChatTemplateFile))};
  if (!fs::exists(config, error)) return {};
  const Json json = Json::read(own_file(folder, config.filename()));
  const Json* found = json.is_object() ? json.find("chat_template") : nullptr;
  if (!found || found->is_null()) return {};
  if (const auto source = default_template(*found)) return ChatTemplateFile{config, *source};
  std::string names;
  for (const Json& named : found->elements()) names += (names.empty() ? "" : ", ") + named.get_string("name");
  fail("%s: none of its chat templates is called default: %s\n  put one of them into chat_template.jinja next to it",
       config.c_str(), names.c_str());
}

std::string chat_hint(const Options& options, const TextCodec& codec) {
  if (options.chat && options.trains() && options.train_data.empty())
    return "--chat: this run trains, and --prompt begins its samples; --sample-only talks to the model without "
           "training";
  if (options.chat || !options.sample_only || options.prompt.empty() || !codec.has_tokenizer()) return "";
  try {
    if (!find_chat_template(fs::path(codec.file()).parent_path())) return "";
  } catch (const Error&) {  // it has several, and none is the default
    return "";
  }
  if (SpecialTokens(codec.tokenizer()).next(options.prompt, 0)) return "";
  return "the model has a chat template, and --prompt is continued as it stands: --chat makes it what a user says";
}

std::vector<int32_t> chat_prompt(const Options& options, const TextCodec& codec, const DataChat* data) {
  REQUIRE(codec.has_tokenizer(), "--chat: %s\n  name the tokenizer of a model that chats: --tokenizer DIR",
          codec.why_not().empty() ? "the model has no tokenizer here" : codec.why_not().c_str());
  REQUIRE(!options.prompt.empty(), "--chat: there is no message\n  name what the user says: --prompt TEXT");
  const ChatTemplateFile chat = template_of(codec, data);
  const SpecialTokens special(codec.tokenizer());
  Json messages = Json::array();
  if (!options.system.empty()) messages.push_back(message("system", with_guards(options.system, "--system", special)));
  messages.push_back(message("user", with_guards(options.prompt, "--prompt", special)));
  const auto [begin, end] = codec.begin_and_end();
  const std::string rendering = render_chat_template(chat.source, chat.path,
                                                     Json::object()
                                                         .set("messages", messages)
                                                         .set("add_generation_prompt", true)
                                                         .set("bos_token", begin)
                                                         .set("eos_token", end));
  const std::vector<int32_t> ids = tokens_of(rendering, codec, special);
  REQUIRE(!ids.empty(), "--chat: the chat template %s renders the message as nothing", chat.path.c_str());
  codec.require_in_model(ids);
  return ids;
}
