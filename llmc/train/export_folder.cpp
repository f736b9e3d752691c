#include "llmc/train/export_folder.h"

#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/base/new_file.h"
#include "llmc/base/text.h"

namespace fs = std::filesystem;

namespace {

// How byte-level tokenizers spell a byte: itself where it is printable, else a character from U+0100 on.
std::string spelled(int byte) {
  int others = 0;
  for (int b = 0; b <= byte; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
    if (b == byte) {
      const int c = printable ? b : 0x100 + others;
      if (c < 0x80) return std::string(1, char(c));
      return {char(0xc0 | c >> 6), char(0x80 | (c & 0x3f))};
    }
    others += !printable;
  }
  return "";
}

// Of a model whose token b is byte b.
Json tokenizer_of_bytes(int V) {
  Json vocabulary = Json::object();
  for (int b = 0; b < V; ++b) vocabulary.set(spelled(b), b);
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

void copy_over(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  REQUIRE(!error, "cannot copy %s to %s: %s", from.c_str(), to.c_str(), error.message().c_str());
}

}  // namespace

void export_tokenizer(const TextCodec& codec, const LlamaConfig& config, const std::string& directory) {
  const fs::path file = codec.file(), to = directory;
  if (!codec.reads_text()) return;
  Json tokenizer_config = Json::object();
  if (!codec.has_tokenizer()) {
    write_file(to / "tokenizer.json", tokenizer_of_bytes(config.V).dump(2) + "\n");
  } else {
    copy_over(file, to / "tokenizer.json");
    if (file.filename() == "tokenizer.json") {  // by another name it does not say what beside it is its own
      const fs::path from = file.parent_path();
      for (const char* name : {"special_tokens_map.json", "tokenizer.model", "added_tokens.json", "vocab.json",
                               "merges.txt", "chat_template.jinja"})
        if (fs::exists(from / name)) copy_over(from / name, to / name);
      if (fs::exists(from / "tokenizer_config.json")) tokenizer_config = Json::read(from / "tokenizer_config.json");
    }
  }
  tokenizer_config.set("tokenizer_class", "PreTrainedTokenizerFast");
  write_file(to / "tokenizer_config.json", tokenizer_config.dump(2) + "\n");
}

void export_model_card(const ModelCard& card, const LlamaConfig& c, const std::string& directory) {
  std::string text = format(
      "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags: [llama, train_llama]\n---\n# %s\n\n",
      c.name.c_str());
  text += format(
      "A Llama model of %s parameters, trained by `train_llama`: %d layers, hidden size %d, %d query and %d key/value\n"
      "heads of %d, FFN %d, vocabulary %d%s.\n\n",
      human_count(double(c.parameters())).c_str(), c.L, c.C, c.NH, c.NKV, c.HD, c.FF, c.V, c.tied ? ", tied head" : "");
  text += "| | |\n|---|---|\n";
  const auto row = [&](const std::string& name, const std::string& value) {
    text += "| " + name + " | " + value + " |\n";
  };
  std::string data = card.data;
  for (size_t at = 0; (at = data.find_first_of("\n|", at)) != data.npos; at += 2) data.replace(at, 1, "; ");
  row("data", data);
  row("steps", std::to_string(card.steps));
  row("tokens", human_count(double(card.tokens)));
  for (const Json* figures : {&card.last_step, &card.last_score}) {
    if (figures->is_null()) continue;
    for (const auto& [name, value] : figures->items())
      if (name != "step" && value.is_number()) row(name, shortest(value.as_double()));
  }
  if (!card.options.empty()) row("options", "`" + card.options + "`");
  text +=
      "\n    from transformers import AutoModelForCausalLM\n    model = AutoModelForCausalLM.from_pretrained(\".\")\n";
  write_file(fs::path(directory) / "README.md", text);
}
