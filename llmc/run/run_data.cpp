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
#include "llmc/data/data_identity.h"
#include "llmc/data/shard_manifest.h"
#include "llmc/data/text_shards.h"

namespace {

// Returns a sentence about the training files that are also held-out files, whatever their paths; "" if there are none.
std::string files_in_both(const DataSources& train, const DataSources& held_out) {
  const auto file = [](const std::string& path) {
    struct stat status {};
    stat(path.c_str(), &status);
    return std::pair(status.st_dev, status.st_ino);
  };
  std::set<decltype(file(""))> trained_on;
  for (const DataSource& source : train)
    for (int i = 0; i < source.tokens.shards(); ++i) trained_on.insert(file(source.tokens.shard_path(i)));
  int64_t both = 0, all = 0;
  std::string first;
  for (const DataSource& source : held_out)
    for (int i = 0; i < source.tokens.shards(); ++i, ++all)
      if (const std::string& path = source.tokens.shard_path(i); trained_on.count(file(path)) && both++ == 0)
        first = path;
  if (!both) return "";
  return format(
      "%lld of the %lld held-out files, %s%s, %s also trained on: the held-out loss is not that of unseen text",
      (long long)both, (long long)all, first.c_str(), both > 1 ? " first" : "", both > 1 ? "are" : "is");
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

// Returns the rule of the documents of a source of the checkpoint's run; nothing if it is not known. `part` is "train"
// or "held_out".
std::optional<DocumentRule> documents_of(const Checkpoint& checkpoint, const char* part, const std::string& source) {
  const Json* identity = source_identity(checkpoint.state().at("data_identity").at(part), source);
  return identity ? rule_of(identity->at("documents")) : std::nullopt;
}

// Returns a sentence for each source that has only one document as far as is known, so that packing changes nothing.
std::vector<std::string> sources_of_one_document(const DataSources& sources) {
  std::vector<std::string> sentences;
  for (const DataSource& source : sources) {
    const std::string missing = source.documents ? missing_documents(*source.documents, source.tokens)
                                                 : "no token is known to begin a document of " + source.pattern;
    if (!missing.empty()) sentences.push_back(error_prefix(source) + missing);
  }
  return sentences;
}

// Finds the rule that says where the documents of a source begin. Throws if there is none, unless it is one of a
// mixture.
void find_documents(DataSource& source, const char* part, const Options& options, const ModelSource& model,
                    const TextCodec& codec, const Checkpoint* start) {
  if (options.document_token < 0 && source.tokenized && codec.document_token()) {
    source.documents = DocumentRule{*codec.document_token(), true};
    return;
  }
  const std::string name = source.pattern.empty() ? "the bundled text" : source.pattern;
  const auto before = start ? documents_of(*start, part, source.name) : std::nullopt;
  source.documents = source.name.empty() ? document_rule(name, options.document_token, model.config, before)
                                         : find_document_rule(name, options.document_token, model.config, before);
}

// Warns if nothing teaches the model to end a document, as far as this training data tells.
void warn_of_documents_without_end(const DataSource& train, RunData& data, const Options& options,
                                   const ModelSource& model, const TextCodec& codec) {
  const bool listed = train.tokenized || delimiter_of(train.pattern, model.config.V).known();
  const bool parses = train.tokenized && options.special_tokens == "parse";
  const std::optional<int32_t> end = parses ? codec.tokenizer().id_of(codec.begin_and_end().second) : std::nullopt;
  const bool spells_end =
      end && *end != train.documents->token;  // as the text's author may have put it after documents
  if (listed && train.documents->begins && data.delimiter.after < 0 && !data.chat && !spells_end)
    data.remarks.push_back(never_ends(*train.documents, train.tokenized ? train.pattern : "", codec));
}

// Finds the rules that say where documents begin. `letters` are lines about special tokens that texts spell, and that
// were read as letters. Throws if all training data has only one document, since packing would change nothing; if a
// source has, or the held-out data of a training, that is a remark.
void pack_documents(RunData& data, const Options& options, const ModelSource& model, const TextCodec& codec,
                    const Checkpoint* start, const std::string& letters) {
  for (DataSource& source : data.train) find_documents(source, "train", options, model, codec, start);
  for (DataSource& source : data.held_out) {
    const auto of_training = std::ranges::find(data.train, source.name, &DataSource::name);
    if (options.val_data.empty()) source.documents = of_training->documents;  // it is the end of that text
    else find_documents(source, "held_out", options, model, codec, start);
  }
  constexpr const char* fault =
      "--packed-documents: %s: it would change nothing\n  %sname the token that begins each document with "
      "--document-token, or remove --packed-documents";
  const std::vector<std::string> held_out = sources_of_one_document(data.held_out);
  REQUIRE(options.trains() || held_out.empty() || held_out.size() < data.held_out.size(), fault, held_out[0].c_str(),
          letters.c_str());
  for (const std::string& missing : held_out)
    data.remarks.push_back("--packed-documents changes nothing of the held-out loss: " + missing);
  if (!options.trains()) return;
  const std::vector<std::string> train = sources_of_one_document(data.train);
  if (train.size() == data.train.size()) fail(fault, train[0].c_str(), letters.c_str());
  for (const std::string& missing : train)
    data.remarks.push_back("--packed-documents changes nothing of the " + missing);
  const auto has_rule = [](const DataSource& source) { return source.documents.has_value(); };
  const DataSource& first = *std::ranges::find_if(data.train, has_rule);
  if (!codec.reads_bytes())
    (first.documents->begins ? data.delimiter.before : data.delimiter.after) = int(first.documents->token);
  warn_of_documents_without_end(first, data, options, model, codec);
}

// Adds a sentence about the shards without a header.
void remark_about_headers(const TokenDataset& data, std::vector<std::string>& remarks) {
  for (int i = 0; i < data.shards(); ++i)
    if (!data.has_header(i) && !data.is_text()) {
      remarks.push_back(data.shard_path(i) + " has no header: read as uint16 tokens alone, as nanoGPT writes them");
      return;
    }
}

// Opens the files of a source. Text is tokenized, or its bytes are the tokens. Adds to `letters` a line about special
// tokens that became letters.
DataSource open_source(const NamedSource& named, RunData& data, const Options& options, const TextCodec& codec, int V,
                       std::string& letters, Communicator& communicator, Device& device, Console& console) {
  DataSource source{named.name, named.pattern, named.weight, {}};
  std::string shards = named.pattern.empty() ? bundled_text() : named.pattern;
  source.tokenized = is_text(shards, codec.tokenizes_text()) && codec.tokenizes_text();
  if (source.tokenized) {
    const SpelledTokens spelled = options.special_tokens == "parse" ? SpelledTokens::tokens : SpelledTokens::letters;
    const TextShards text = tokenize_text(shards, codec, spelled, cache_folder(options), communicator, device, console);
    data.about_text.push_back(text.about);
    if (!text.remark.empty()) data.remarks.push_back(text.remark), letters += text.remark + "\n  ";
    shards = text.pattern;
  }
  source.tokens = TokenDataset::open(shards, V);
  return source;
}

// Opens the files that the options name. Returns lines about special tokens that texts spell, and that were read as
// letters.
std::string open_datasets(RunData& data, const Options& options, const TextCodec& codec, int V, bool by_bytes,
                          Communicator& communicator, Device& device, Console& console) {
  std::string letters;
  const auto open = [&](DataSources& opened, const std::vector<NamedSource>& sources) {
    for (const NamedSource& source : sources)
      opened.push_back(open_source(source, data, options, codec, V, letters, communicator, device, console));
  };
  const bool holds_out = options.val_data.empty();
  if (!options.train_data.empty() || options.trains() || (holds_out && by_bytes))
    open(data.train, training_sources(options.train_data));
  if (!holds_out) open(data.held_out, held_out_sources(options.val_data));
  for (DataSources* sources : {&data.train, &data.held_out})
    for (DataSource& source : *sources)
      std::ranges::move(compare_with_manifests(source.tokens), std::back_inserter(data.remarks));  // before it is split
  for (DataSource& source : data.train) {
    if (!holds_out || !(source.tokenized || source.tokens.is_text())) continue;
    auto [most, last_tenth] = hold_out_last_tenth(source.tokens, source.pattern);
    source.tokens = std::move(most);
    data.held_out.push_back({source.name, source.pattern, 1, std::move(last_tenth), source.tokenized});
  }
  return letters;
}

// Throws if a text was opened as bytes, and bytes are not the model's tokens.
void require_model_tokens(const RunData& data, const Options& options, const TextCodec& codec, int V, bool by_bytes) {
  for (const DataSources* sources : {&data.train, &data.held_out})
    for (const DataSource& source : *sources)
      REQUIRE(by_bytes || !source.tokens.is_text(),
              "%s has a vocabulary of %d and no tokenizer that cuts a text into its tokens\n"
              "  name its tokenizer: --tokenizer DIR; or token files that were made with it: --%s 'DIR/*.bin'%s%s",
              options.model.c_str(), V, sources == &data.train ? "train-data" : "val-data",
              codec.why_not().empty() ? "" : "\n  the one that was found: ", codec.why_not().c_str());
}

void add_remarks(RunData& data, const Options& options, const ModelSource& model) {
  for (const std::string& named : {options.train_data, options.val_data})
    for (const std::string& pattern : patterns_of(named))
      if (const std::string differ = different_rules(pattern); !differ.empty()) data.remarks.push_back(differ);
  for (const DataSources* sources : {&data.train, &data.held_out})
    for (const DataSource& source : *sources) remark_about_headers(source.tokens, data.remarks);
  if (data.chat && !data.chat->remark.empty()) data.remarks.push_back(data.chat->remark);
  if (options.trains()) {
    std::string remark = options.val_data.empty() ? "" : files_in_both(data.train, data.held_out);
    for (const DataSource& source : data.train)
      if (remark.empty()) remark = held_out_by_name(source.pattern);
    if (!remark.empty()) data.remarks.push_back(remark);
  }
  if (options.special_tokens == "parse" && data.about_text.empty())
    data.remarks.push_back(
        "--special-tokens parse changes nothing: no text is cut into a tokenizer's tokens\n  write shards again "
        "with dev/data/prepare --special-tokens parse, or name the tokenizer of a text: --tokenizer DIR");
  if (options.eval_only && !options.packed_documents && !data.held_out.empty() && packed_when_trained(model.directory))
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
  const std::string letters = open_datasets(data, options, codec, V, by_bytes, communicator, device, console);
  require_model_tokens(data, options, codec, V, by_bytes);
  if (options.trains()) data.chat = chat_of_data(options.train_data, V);
  if (options.trains() && !codec.reads_bytes())
    data.delimiter = data.train[0].tokenized ? Delimiter{codec.document_token().value_or(-1), -1}
                                             : delimiter_of(options.train_data, V);
  codec.require_made(options.train_data);
  codec.require_made(options.val_data);
  add_remarks(data, options, model);
  if (options.packed_documents) pack_documents(data, options, model, codec, start, letters);
  return data;
}
