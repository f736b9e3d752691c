// Covers: chats: renderings of chat templates are jinja2's; what --chat makes of a message: which template, its special
// tokens as tokens, those of the message as letters; a prompt that spells the begin token has it once
#include <ctime>
#include <filesystem>

#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/base/input_file.h"
#include "llmc/data/chat_prompt.h"
#include "llmc/data/chat_template.h"
#include "llmc/data/special_tokens.h"
#include "llmc/run/export_folder.h"

namespace fs = std::filesystem;

namespace {

constexpr char kTurns[] =
    "{{ bos_token }}{% for m in messages %}<|reserved_special_token_0|>{{ m.role }}\n{{ m.content | trim }}"
    "<|reserved_special_token_1|>{% endfor %}{% if add_generation_prompt %}<|reserved_special_token_0|>assistant\n"
    "{% endif %}";

// Opens Llama 3's small tokenizer in a folder of its own, with its template in tokenizer_config.json.
TextCodec codec_in(const TemporaryFolder& folder, const Json& chat_template) {
  fs::copy_file("dev/test/tokenizers/llama3.json", folder / "tokenizer.json", fs::copy_options::overwrite_existing);
  write_file(folder / "tokenizer_config.json",
             Json::object().set("bos_token", "<|begin_of_text|>").set("chat_template", chat_template).dump());
  ModelConfig config = ModelConfig::preset("tiny");
  config.V = 1514;
  return TextCodec::open(folder / "", "", "", config);
}

std::string spelled(const TextCodec& codec, const std::vector<int32_t>& ids) {
  std::string text;
  std::vector<int32_t> letters;
  const auto finish = [&] { text += codec.tokenizer().decode(std::exchange(letters, {}), false); };
  for (const int32_t id : ids) {
    if (!codec.is_special(id)) letters.push_back(id);
    else finish(), text += "[" + *codec.tokenizer().token_of(id) + "]";
  }
  finish();
  return text;
}

std::string chat(const TextCodec& codec, const std::string& prompt, const std::string& system = "",
                 const DataChat* data = nullptr) {
  Options options;
  options.prompt = prompt, options.system = system;
  return spelled(codec, chat_prompt(options, codec, data));
}

}  // namespace

TEST_CASE("a prompt that spells the tokens that begin a text has them once") {
  TemporaryFolder folder;
  const TextCodec codec = codec_in(folder, nullptr);
  const std::vector<int32_t> hello = codec.prompt("Hello");
  CHECK(hello[0] == 1505);
  CHECK(codec.prompt("<|begin_of_text|>Hello") == hello);
  CHECK(codec.prompt("<|begin_of_text|><|begin_of_text|>Hello").size() == hello.size() + 1);  // as it was asked for
  CHECK(codec.prompt("") == std::vector<int32_t>{1505});
  CHECK(codec.prompt("<|begin_of_text|>") == std::vector<int32_t>{1505});
}

TEST_CASE("a chat template is chat_template.jinja, else that of tokenizer_config.json, else the one named default") {
  TemporaryFolder folder;
  CHECK(!find_chat_template(folder / ""));
  codec_in(folder, nullptr);
  CHECK(!find_chat_template(folder / ""));
  const auto named = [](const char* name) { return Json::object().set("name", name).set("template", "of a list"); };
  codec_in(folder, Json::array().push_back(named("tool_use")).push_back(named("default")));
  CHECK(find_chat_template(folder / "")->source == "of a list");
  codec_in(folder, Json::array().push_back(named("tool_use")).push_back(named("rag")));
  says(error_of([&] { find_chat_template(folder / ""); }), "is called default: tool_use, rag");
  codec_in(folder, "text");
  CHECK(find_chat_template(folder / "")->source == "text");
  const DataChat data{"data/talks", "of a list", {}, ""}, other{"data/talks", "text", {}, ""};
  const TextCodec listed = codec_in(folder, Json::array().push_back(named("tool_use")).push_back(named("default")));
  const ModelConfig config = ModelConfig::preset("tiny");
  CHECK(!TokenizerFiles(listed, config, &data).replaces_template());
  CHECK(TokenizerFiles(listed, config, &other).replaces_template());
  write_file(folder / "chat_template.jinja", "file");
  CHECK(find_chat_template(folder / "")->source == "file");
}

TEST_CASE("a program without the library says how to get it") {
  TemporaryFolder folder;
  const TextCodec codec = codec_in(folder, kTurns);
  if (chat_template_library().empty()) says(error_of([&] { chat(codec, "Hi"); }), "without minja", "scripts/get_minja");
}

TEST_CASE("--chat: the template's special tokens are tokens, and those of the messages are letters") {
  if (chat_template_library().empty()) return;
  TemporaryFolder folder;
  const TextCodec codec = codec_in(folder, kTurns);
  const std::string begin = "[<|begin_of_text|>][<|reserved_special_token_0|>]",
                    end = "[<|reserved_special_token_1|>][<|reserved_special_token_0|>]";
  CHECK(chat(codec, " Hi ") == begin + "user\nHi" + end + "assistant\n");
  CHECK(chat(codec, "Hi", "Be brief.") == begin + "system\nBe brief." + end + "user\nHi" + end + "assistant\n");
  const std::string both = "a <|end_of_text|><|reserved_special_token_1|>ü b";
  CHECK(chat(codec, both) == begin + "user\n" + both + end + "assistant\n");
  TextEncoder letters(codec.tokenizer(), true);
  Options options;
  options.prompt = both;
  std::vector<int32_t> want = {1505, 1507};
  letters.encode("user\n" + both, false, want);
  want.insert(want.end(), {1508, 1507});
  letters.encode("assistant\n", false, want);
  CHECK(chat_prompt(options, codec, nullptr) == want);
  // A tokenizer that puts a space before the first word alone, with a token that takes the white space after it.
  Json file = Json::read("dev/test/tokenizers/llama2.json"), added = file.at("added_tokens");
  const Json space =
      Json::object().set("type", "Metaspace").set("replacement", "\u2581").set("prepend_scheme", "first");
  file.set("normalizer", nullptr).set("pre_tokenizer", Json(space).set("split", false));
  Json strips = added.at(0);
  const int64_t id = Tokenizer(file).vocabulary_size();
  added.push_back(strips.set("id", id).set("content", "<|user|>").set("rstrip", true).set("special", true));
  TemporaryFolder metaspace;
  write_file(metaspace / "tokenizer.json", file.set("added_tokens", added).dump());
  ModelConfig config = ModelConfig::preset("tiny");
  config.V = int(id) + 1;
  const TextCodec first = TextCodec::open(metaspace / "", "", "", config);
  const DataChat user{"data/talks", "{{ bos_token }}<|user|>\n{{ messages[0].content }} and", {}, ""};
  options.prompt = "</s>one";
  const std::vector<int32_t> with_letters = chat_prompt(options, first, &user);
  options.prompt = "(/s)one";
  const std::vector<int32_t> without = chat_prompt(options, first, &user);
  CHECK(std::vector(with_letters.begin(), with_letters.begin() + 2) == std::vector{1, int32_t(id)});
  CHECK(first.tokenizer().decode(std::span(with_letters).subspan(2), false) == "</s>one and");
  CHECK(first.tokenizer().decode(std::span(without).subspan(2), false) == "(/s)one and");
  for (const auto& ids : {with_letters, without}) CHECK(!first.tokenizer().token_of(ids[2])->starts_with("\u2581"));
  const DataChat data{"data/talks", "{{ messages[0].content }}!", {}, ""};
  CHECK(chat(codec, "Hi", "", &data) == "Hi!");
  says(error_of([&] { chat(codec, ""); }), "there is no message", "--prompt TEXT");
  says(error_of([&] { chat(codec, "\xef\xb7\x92"); }), "--prompt has the code point U+FDD2 or U+FDD3");
  const DataChat wrong{"data/talks", "{{ raise_exception('no ' ~ messages | length) }}", {}, ""};
  says(error_of([&] { chat(codec, "Hi", "", &wrong); }), "the chat template data/talks cannot be rendered", "no 1");
  TemporaryFolder other;
  const TextCodec none = codec_in(other, nullptr);
  says(error_of([&] { chat(none, "Hi"); }), "there is no chat template next to", "tokenizer_config.json");
}

TEST_CASE("templates are rendered as jinja2 renders them") {
  if (chat_template_library().empty()) return;
  const std::string folder = "dev/test/chat_templates/";
  int64_t rendered = 0;
  const Json cases = Json::read(folder + "expected.json");
  for (const Json& one : cases.elements()) {
    const std::string path = folder + one.get_string("template"), source = content_of(path);
    std::string text;
    const std::string refusal = error_of([&] { text = render_chat_template(source, path, one.at("values")); });
    CAPTURE(path);
    CAPTURE(one.get_string("conversation"));
    CAPTURE(refusal);
    if (one.contains("refused")) {
      CHECK(refusal != "");
      continue;
    }
    CHECK(text == one.get_string("text"));
    rendered += text == one.get_string("text");
  }
  CHECK(rendered >= 30);
  CHECK(render_chat_template("a\n  {%+ if 1 %}b{% endif %}\n  {% if 1 %}c{% endif %}", "plus", {}) == "a\n  bc");
  char year[8];
  const std::time_t now = std::time(nullptr);
  strftime(year, sizeof year, "%Y", localtime(&now));
  CHECK(render_chat_template("{{ strftime_now('%Y') }}", "year", Json::object()) == year);
}
