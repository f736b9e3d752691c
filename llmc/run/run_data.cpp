#include "llmc/run/run_data.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/data/data_folder.h"
#include "llmc/data/shard_manifest.h"
#include "llmc/data/text_shards.h"

namespace {

// Returns a sentence about the training files that are also held-out files, whatever their paths; "" if there are none.
std::string files_in_both(const TokenDataset& train, const TokenDataset& held_out) {
  const auto file = [](const std::string& path) {
    struct stat status {};
    stat(path.c_str(), &status);
    return std::pair(status.st_dev, status.st_ino);
  };
  std::set<decltype(file(""))> trained_on;
  for (int i = 0; i < train.shards(); ++i) trained_on.insert(file(train.shard_path(i)));
  int64_t both = 0;
  std::string first;
  for (int i = 0; i < held_out.shards(); ++i)
    if (const std::string& path = held_out.shard_path(i); trained_on.count(file(path)) && both++ == 0) first = path;
  if (!both) return "";
  return format("%lld of the %d held-out files, %s%s, %s also trained on: the held-out loss is not that of unseen text",
                (long long)both, held_out.shards(), first.c_str(), both > 1 ? " first" : "", both > 1 ? "are" : "is");
}

// Returns a warning if packed documents only begin with a token: it is no label then, so no label ends a document.
// `text` is the pattern of texts that the program tokenized; empty for shards.
std::string never_ends(const DocumentRule& rule, const std::string& text, const TextCodec& codec) {
  const std::string name = codec.has_tokenizer() ? codec.tokenizer().token_of(int32_t(rule.token)).value_or("") : "";
  std::string how = "write the shards again with dev/data/prepare --delimiter after";
  if (!text.empty()) {
    const auto [begin, end] = codec.begin_and_end();
    std::string files;  // prepare knows no braces
    const bool listed = text.find('{') != text.npos;
    for (const std::string& file : listed ? glob(text) : std::vector{text}) files += " " + shell_quoted(file);
    how = format(
        "make shards with dev/data/prepare%s --tokenizer %s --document-separator %s --strip --delimiter %s "
        "--out DIR",
        files.c_str(), shell_quoted(codec.file()).c_str(), shell_quoted(name).c_str(),
        begin.empty() || end.empty() || begin == end ? "after" : "both");
  }
  return format(
      "nothing teaches the model to end a document: token %lld%s begins each, and packed documents do not "
      "predict it\n  %s, or train without --packed-documents",
      (long long)rule.token, name.empty() ? "" : (", " + name + ",").c_str(), how.c_str());
}

// Returns whether these weights are the export of a run that packed documents; `weights` is their folder.
bool packed_when_trained(const std::string& weights) {
  const std::filesystem::path run = std::filesystem::path(weights) / "..";
  std::error_code error;
  for (const char* file : {"train.jsonl", "config.json"})
    if (weights.empty() || !std::filesystem::is_regular_file(run / file, error)) return false;
  const Json options = Json::read(run / "config.json");
  const Json* packed = options.is_object() ? options.find("packed_documents") : nullptr;
  return packed && *packed == Json(true);
}

// Returns the rule of the documents of the checkpoint's run; nothing if it is not known. `part` is "train" or
// "held_out".
std::optional<DocumentRule> documents_of(const Checkpoint& checkpoint, const char* part) {
  const Json& identity = checkpoint.state().at("data_identity");
  if (identity.at(part).is_null()) return {};
  return rule_of(identity.at(part).at("documents"));
}

// What open_datasets() tokenized, because it was text.
struct Tokenized {
  bool train = false, held_out = false;
  std::string letters;  // about special tokens that texts spell, and that were read as letters; a line each
};

// Finds the rules that say where documents begin. Throws if the training data has only one document, since packing
// would change nothing; if the held-out data of a training has only one, that is a remark.
void pack_documents(RunData& data, const Options& options, const ModelSource& model, const TextCodec& codec,
                    const Checkpoint* start, const Tokenized& tokenized) {
  const auto rule = [&](const std::string& pattern, bool was_text, const char* part) {
    if (options.document_token < 0 && was_text && codec.document_token())
      return DocumentRule{*codec.document_token(), true};
    return document_rule(pattern.empty() ? "the bundled text" : pattern, options.document_token, model.config,
                         start ? documents_of(*start, part) : std::nullopt);
  };
  if (data.train) data.documents = rule(options.train_data, tokenized.train, "train");
  if (data.held_out)
    data.held_out_documents =
        options.val_data.empty() ? data.documents : rule(options.val_data, tokenized.held_out, "held_out");
  constexpr const char* fault =
      "--packed-documents: %s: it would change nothing\n  %sname the token that begins each document with "
      "--document-token, or remove --packed-documents";
  if (data.held_out)
    if (const std::string missing = missing_documents(*data.held_out_documents, *data.held_out); !missing.empty()) {
      REQUIRE(options.trains(), fault, missing.c_str(), tokenized.letters.c_str());
      data.remarks.push_back("--packed-documents changes nothing of the held-out loss: " + missing);
    }
  if (!options.trains()) return;
  if (const std::string missing = missing_documents(*data.documents, *data.train); !missing.empty())
    fail(fault, missing.c_str(), tokenized.letters.c_str());
  if (!codec.reads_bytes())
    (data.documents->begins ? data.delimiter.before : data.delimiter.after) = int(data.documents->token);
  const bool listed = tokenized.train || delimiter_of(options.train_data, model.config.V).known();
  const bool parses = tokenized.train && options.special_tokens == "parse";
  const std::optional<int32_t> end = parses ? codec.tokenizer().id_of(codec.begin_and_end().second) : std::nullopt;
  const bool spells_end = end && *end != data.documents->token;  // as the text's author may have put it after documents
  if (listed && data.documents->begins && data.delimiter.after < 0 && !data.chat && !spells_end)
    data.remarks.push_back(never_ends(*data.documents, tokenized.train ? options.train_data : "", codec));
}

// Adds a sentence about the shards without a header.
void remark_about_headers(const TokenDataset& data, std::vector<std::string>& remarks) {
  for (int i = 0; i < data.shards(); ++i)
    if (!data.has_header(i) && !data.is_text()) {
      remarks.push_back(data.shard_path(i) + " has no header: read as uint16 tokens alone, as nanoGPT writes them");
      return;
    }
}

// Opens the files that the options name. Text is tokenized, or its bytes are the tokens.
Tokenized open_datasets(RunData& data, const Options& options, const TextCodec& codec, int V, bool by_bytes,
                        Communicator& communicator, Device& device, Console& console) {
  Tokenized tokenized;
  // Returns the pattern of the shards: as it is named, or of those that a text became.
  const auto shards_of = [&](const std::string& pattern, bool& was_text) {
    was_text = is_text(pattern, codec.tokenizes_text()) && codec.tokenizes_text();
    if (!was_text) return pattern;
    const SpelledTokens spelled = options.special_tokens == "parse" ? SpelledTokens::tokens : SpelledTokens::letters;
    const TextShards shards =
        tokenize_text(pattern, codec, spelled, cache_folder(options), communicator, device, console);
    data.about_text.push_back(shards.about);
    if (!shards.remark.empty()) data.remarks.push_back(shards.remark), tokenized.letters += shards.remark + "\n  ";
    return shards.pattern;
  };
  const auto compare = [&](std::optional<TokenDataset>& tokens) {
    if (tokens) std::ranges::move(compare_with_manifests(*tokens), std::back_inserter(data.remarks));
  };
  const bool named = !options.train_data.empty();
  std::string held_out = options.val_data;
  if (named || options.trains() || (held_out.empty() && by_bytes)) {
    const std::string train = shards_of(named ? options.train_data : bundled_text(), tokenized.train);
    if (!held_out.empty()) held_out = shards_of(held_out, tokenized.held_out);
    TrainingData both = open_training_data(train, held_out, V);
    data.train = std::move(both.train);
    data.held_out = std::move(both.held_out);
    compare(data.train), compare(data.held_out);  // before they are split
    if (tokenized.train && held_out.empty()) {
      both = hold_out_last_tenth(*data.train, options.train_data);
      data.train = std::move(both.train);
      data.held_out = std::move(both.held_out);
    }
  } else if (!held_out.empty()) {
    held_out = shards_of(held_out, tokenized.held_out);
    data.held_out = TokenDataset::open(held_out, V);
    compare(data.held_out);
  }
  return tokenized;
}

// Throws if a text was opened as bytes, and bytes are not the model's tokens.
void require_model_tokens(const RunData& data, const Options& options, const TextCodec& codec, int V, bool by_bytes) {
  for (const auto* tokens : {&data.train, &data.held_out})
    REQUIRE(by_bytes || !*tokens || !(*tokens)->is_text(),
            "%s has a vocabulary of %d and no tokenizer that cuts a text into its tokens\n"
            "  name its tokenizer: --tokenizer DIR; or token files that were made with it: --%s 'DIR/*.bin'%s%s",
            options.model.c_str(), V, tokens == &data.train ? "train-data" : "val-data",
            codec.why_not().empty() ? "" : "\n  the one that was found: ", codec.why_not().c_str());
}

void add_remarks(RunData& data, const Options& options, const ModelSource& model) {
  for (const std::string& pattern : {options.train_data, options.val_data})
    if (const std::string differ = different_rules(pattern); !differ.empty()) data.remarks.push_back(differ);
  for (const auto* tokens : {&data.train, &data.held_out})
    if (*tokens) remark_about_headers(**tokens, data.remarks);
  if (data.chat && !data.chat->remark.empty()) data.remarks.push_back(data.chat->remark);
  if (options.trains()) {
    std::string remark = options.val_data.empty() ? "" : files_in_both(*data.train, *data.held_out);
    if (remark.empty()) remark = held_out_by_name(options.train_data);
    if (!remark.empty()) data.remarks.push_back(remark);
  }
  if (options.special_tokens == "parse" && data.about_text.empty())
    data.remarks.push_back(
        "--special-tokens parse changes nothing: no text is cut into a tokenizer's tokens\n  write shards again "
        "with dev/data/prepare --special-tokens parse, or name the tokenizer of a text: --tokenizer DIR");
  if (options.eval_only && !options.packed_documents && data.held_out && packed_when_trained(model.directory))
    data.remarks.push_back(options.model +
                           " was trained with --packed-documents, and is measured without it: the loss is not "
                           "that of its run\n  add --packed-documents on");
}

}  // namespace

RunData open_run_data(const Options& options, const ModelSource& model, const TextCodec& codec, const Checkpoint* start,
                      Communicator& communicator, Device& device, Console& console) {
  RunData data;
  const int V = model.config.V;
  const bool by_bytes = (V <= 256 && codec.why_not().empty()) || !model.loaded;
  const Tokenized tokenized = open_datasets(data, options, codec, V, by_bytes, communicator, device, console);
  require_model_tokens(data, options, codec, V, by_bytes);
  if (options.trains()) data.chat = chat_of_data(options.train_data, V);
  if (options.trains() && !codec.reads_bytes())
    data.delimiter =
        tokenized.train ? Delimiter{codec.document_token().value_or(-1), -1} : delimiter_of(options.train_data, V);
  codec.require_made(options.train_data);
  codec.require_made(options.val_data);
  add_remarks(data, options, model);
  if (options.packed_documents) pack_documents(data, options, model, codec, start, tokenized);
  return data;
}
