#include "llmc/run/export_folder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "llmc/base/input_file.h"
#include "llmc/base/new_file.h"
#include "llmc/base/text.h"
#include "llmc/tokenizer/byte_level.h"

namespace fs = std::filesystem;

namespace {

// Returns a tokenizer.json for a model whose token b is byte b.
Json tokenizer_of_bytes(int V) {
  Json vocabulary = Json::object();
  for (int b = 0; b < V; ++b) vocabulary.set(byte_level(std::string(1, char(b))), b);
  const Json stage = Json::object()
                         .set("type", "ByteLevel")
                         .set("add_prefix_space", false)
                         .set("trim_offsets", false)
                         .set("use_regex", false);
  return Json::object()
      .set("version", "1.0")
      .set("truncation", nullptr)
      .set("padding", nullptr)
      .set("added_tokens", Json::array())
      .set("normalizer", nullptr)
      .set("pre_tokenizer", stage)
      .set("post_processor", nullptr)
      .set("decoder", stage)
      .set("model", Json::object()
                        .set("type", "BPE")
                        .set("dropout", nullptr)
                        .set("unk_token", nullptr)
                        .set("continuing_subword_prefix", nullptr)
                        .set("end_of_word_suffix", nullptr)
                        .set("fuse_unk", false)
                        .set("byte_fallback", false)
                        .set("ignore_merges", false)
                        .set("vocab", vocabulary)
                        .set("merges", Json::array()));
}

// True also for a link that leads nowhere, which is an error when it is read.
bool stands_in(const fs::path& folder, const char* name) {
  std::error_code error;
  return fs::exists(fs::symlink_status(folder / name, error));
}

// Makes a text fit into a cell of a table: without line ends, bars and backquotes.
std::string cell(std::string text) {
  for (size_t at = 0; (at = text.find_first_of("\n|`", at)) != text.npos; ++at) text[at] = text[at] == '`' ? '\'' : ' ';
  return text;
}

// Returns the name of the run, of whose folder runs/NAME/export is a part, or of a folder that stands for itself.
std::string card_title(const std::string& directory) {
  const fs::path path = fs::weakly_canonical(fs::path(directory) / "");
  const fs::path folder = path.filename().empty() ? path.parent_path() : path;
  return cell(folder.filename() == "export" ? folder.parent_path().filename() : folder.filename());
}

// A figure of train.jsonl as people read it: "3.1415", "4e-05", "17.9k".
std::string figure(const Json& value) {
  if (value.is_int()) return std::to_string(value.as_int());
  const double x = value.as_double(), size = std::fabs(x);
  return size >= 1000 ? human_count(x) : size > 0 && size < 0.001 ? format("%.3g", x) : format("%.4f", x);
}

std::string count_of(int64_t n, const char* what) { return format("%lld %s%s", (long long)n, what, n == 1 ? "" : "s"); }

}  // namespace

TokenizerFiles::TokenizerFiles(const TextCodec& codec, const ModelConfig& config, const DataChat* chat) {
  const fs::path file = codec.file();
  Json tokenizer_config = Json::object();
  if (file.filename() == "tokenizer.json") {
    const fs::path from = file.parent_path();
    for (const char* name : {"tokenizer.json", "special_tokens_map.json", "tokenizer.model", "added_tokens.json",
                             "vocab.json", "merges.txt", kChatTemplateFile})
      if (stands_in(from, name)) files_.emplace_back(name, content_of(own_file(from, name)));
    if (stands_in(from, "tokenizer_config.json")) {
      const std::string path = own_file(from, "tokenizer_config.json");
      config_ = content_of(path);
      tokenizer_config = Json::parse(*config_, path);
      tokenizer_config.items();  // throws if it is not an object
    }
  } else if (!file.empty()) {  // a file with another name does not say which files of its folder belong to it
    files_.emplace_back("tokenizer.json", content_of(file));
  } else if (codec.reads_text()) {
    files_.emplace_back("tokenizer.json", tokenizer_of_bytes(config.V).dump(2) + "\n");
    of_bytes_ = true;
  } else {
    return;
  }
  tokenizer_config.set("tokenizer_class", "PreTrainedTokenizerFast");
  if (chat) set_template(*chat, tokenizer_config);
  // Hugging Face's tools follow the file, and older ones look into tokenizer_config.json alone.
  const auto file_of = [](const auto& named) { return named.first == kChatTemplateFile; };
  if (const auto own = std::ranges::find_if(files_, file_of);
      own != files_.end() && tokenizer_config.contains("chat_template"))
    tokenizer_config.set("chat_template", own->second);
  files_.emplace_back("tokenizer_config.json", tokenizer_config.dump(2) + "\n");
}

// Puts the data's chat template into the files, and notes whether another one was there.
void TokenizerFiles::set_template(const DataChat& chat, const Json& tokenizer_config) {
  const auto own = std::ranges::find_if(files_, [](const auto& named) { return named.first == kChatTemplateFile; });
  if (own != files_.end()) {
    replaces_template_ = own->second != chat.source;
    own->second = chat.source;
    return;
  }
  const Json* other = tokenizer_config.find("chat_template");
  replaces_template_ = other && !other->is_null() && default_template(*other) != chat.source;
  files_.emplace_back(kChatTemplateFile, chat.source);
}

void TokenizerFiles::write(const std::string& directory) const {
  for (const auto& [name, content] : files_) write_file(fs::path(directory) / name, content);
}

std::vector<std::string> TokenizerFiles::names() const {
  std::vector<std::string> names;
  for (const auto& file : files_) names.push_back(file.first);
  return names;
}

std::vector<std::pair<std::string, std::string>> TokenizerFiles::sources() const {
  if (files_.empty() || of_bytes_) return {};
  std::vector<std::pair<std::string, std::string>> read(files_.begin(), files_.end() - 1);
  if (config_) read.emplace_back(files_.back().first, *config_);
  return read;
}

std::vector<std::string> TokenizerFiles::changed_beside(const std::string& tokenizer_json) const {
  std::vector<std::string> changed;
  const fs::path file = tokenizer_json;
  const bool others = file.filename() == "tokenizer.json";
  for (const auto& [name, content] : sources()) {
    if (replaces_template_ && name == kChatTemplateFile) continue;
    const fs::path path = name == "tokenizer.json" ? file : file.parent_path() / name;
    std::error_code error;
    if ((path != file && !others) || !fs::is_regular_file(path, error)) continue;
    try {
      if (fs::file_size(path, error) != content.size() || content_of(path) != content) changed.push_back(path);
    } catch (const Error&) {  // what the run began with may be anybody's by now
    }
  }
  return changed;
}

void export_model_card(const ModelCard& card, const ModelConfig& c, const std::string& directory) {
  std::string text =
      format("---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags: [%s, train_llama]\n---\n# %s\n\n",
             c.family->model_type, card_title(directory).c_str());
  text += format(
      "A model of the family %s, of %s parameters, trained by `train_llama`: %s, hidden size %d, %d query and %d "
      "key/value\n"
      "heads of %d, FFN %d, vocabulary %d%s.\n\n",
      c.family->model_type, human_count(double(c.parameters())).c_str(), count_of(c.L, "layer").c_str(), c.C, c.NH,
      c.NKV, c.HD, c.FF, c.V, c.tied ? ", tied head" : "");
  text += "| | |\n|---|---|\n";
  const auto row = [&](const std::string& name, const std::string& value) {
    text += "| " + name + " | " + value + " |\n";
  };
  row("data", cell(card.data));
  row("steps", std::to_string(card.steps));
  row("tokens", human_count(double(card.tokens)));
  for (const Json* figures : {&card.last_step, &card.last_score}) {
    if (figures->is_null()) continue;
    for (const auto& [name, value] : figures->items())
      if (name != "step" && name != "tokens" && value.is_number()) row(name, figure(value));
  }
  if (!card.options.empty()) row("options", "`" + cell(card.options) + "`");
  const bool chats = stands_in(directory, kChatTemplateFile);
  text += format(
      "\n    from transformers import AutoModelForCausalLM%s\n    model = "
      "AutoModelForCausalLM.from_pretrained(\".\")\n",
      chats ? ", AutoTokenizer" : "");
  if (chats)
    text +=
        "    tokenizer = AutoTokenizer.from_pretrained(\".\")\n"
        "    question = tokenizer.apply_chat_template([{\"role\": \"user\", \"content\": \"Who are you?\"}], "
        "add_generation_prompt=True, return_dict=True, return_tensors=\"pt\")\n"
        "    print(tokenizer.decode(model.generate(**question, max_new_tokens=200)[0]))\n";
  write_file(fs::path(directory) / "README.md", text);
}
