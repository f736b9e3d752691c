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
// `text` is the pattern of texts that the program cut; empty for shards.
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

// Tells the documents of packed rows apart. Throws if the data has only one, since that would change nothing; of the
// held-out data of a training that is a remark. `letters`: what the user should know of the special tokens that texts
// spell, with a line's end; "" if there are none.
void pack_documents(RunData& data, const Options& options, const ModelSource& model, const TextCodec& codec,
                    const Checkpoint* start, bool train_was_cut, bool held_out_was_cut, const std::string& letters) {
  const auto rule = [&](const std::string& pattern, bool was_cut, const char* part) {
    if (options.document_token < 0 && was_cut && codec.document_token())
      return DocumentRule{*codec.document_token(), true};
    return document_rule(pattern.empty() ? "the bundled text" : pattern, options.document_token, model.config,
                         start ? documents_of(*start, part) : std::nullopt);
  };
  if (data.train) data.documents = rule(options.train_data, train_was_cut, "train");
  if (data.held_out)
    data.held_out_documents =
        options.val_data.empty() ? data.documents : rule(options.val_data, held_out_was_cut, "held_out");
  constexpr const char* fault =
      "--packed-documents: %s: it would change nothing\n  %sname the token that begins each document with "
      "--document-token, or remove --packed-documents";
  if (data.held_out)
    if (const std::string missing = missing_documents(*data.held_out_documents, *data.held_out); !missing.empty()) {
      REQUIRE(options.trains(), fault, missing.c_str(), letters.c_str());
      data.remarks.push_back("--packed-documents changes nothing of the held-out loss: " + missing);
    }
  if (!options.trains()) return;
  if (const std::string missing = missing_documents(*data.documents, *data.train); !missing.empty())
    fail(fault, missing.c_str(), letters.c_str());
  if (!codec.reads_bytes())
    (data.documents->begins ? data.delimiter.before : data.delimiter.after) = int(data.documents->token);
  const bool listed = train_was_cut || delimiter_of(options.train_data, model.config.V).known();
  const bool parses = train_was_cut && options.special_tokens == "parse";
  const std::optional<int32_t> end = parses ? codec.tokenizer().id_of(codec.begin_and_end().second) : std::nullopt;
  const bool spells_end = end && *end != data.documents->token;  // as the text's author may have put it after documents
  if (listed && data.documents->begins && data.delimiter.after < 0 && !data.chat && !spells_end)
    data.remarks.push_back(never_ends(*data.documents, train_was_cut ? options.train_data : "", codec));
}

// Adds a sentence about the shards without a header.
void remark_about_headers(const TokenDataset& data, std::vector<std::string>& remarks) {
  for (int i = 0; i < data.shards(); ++i)
    if (!data.has_header(i) && !data.is_text()) {
      remarks.push_back(data.shard_path(i) + " has no header: read as uint16 tokens alone, as nanoGPT writes them");
      return;
    }
}

}  // namespace

RunData open_run_data(const Options& options, const ModelSource& model, const TextCodec& codec, const Checkpoint* start,
                      Communicator& communicator, Device& device, Console& console) {
  RunData data;
  const int V = model.config.V;
  const bool named = !options.train_data.empty(), cuts = codec.cuts_text();
  const bool by_bytes = (V <= 256 && codec.why_not().empty()) || !model.loaded;
  // shards_of() returns the pattern of the shards: as it is named, or of the shards that a text was cut into.
  bool train_was_cut = false, held_out_was_cut = false;
  std::string letters;  // about special tokens that texts spell, and that were cut into letters; a line each
  const auto shards_of = [&](const std::string& pattern, bool& was_cut) {
    was_cut = is_text(pattern, cuts) && cuts;
    if (!was_cut) return pattern;
    const SpelledTokens spelled = options.special_tokens == "parse" ? SpelledTokens::tokens : SpelledTokens::letters;
    const TextShards shards = cut_text(pattern, codec, spelled, cache_folder(options), communicator, device, console);
    data.about_text.push_back(shards.about);
    if (!shards.remark.empty()) data.remarks.push_back(shards.remark), letters += shards.remark + "\n  ";
    return shards.pattern;
  };
  const auto compare = [&](std::optional<TokenDataset>& tokens) {
    if (tokens) std::ranges::move(compare_with_manifests(*tokens), std::back_inserter(data.remarks));
  };
  std::string train = options.train_data, held_out = options.val_data;
  if (named || options.trains() || (held_out.empty() && by_bytes)) {
    train = shards_of(named ? train : bundled_text(), train_was_cut);
    if (!held_out.empty()) held_out = shards_of(held_out, held_out_was_cut);
    TrainingData both = open_training_data(train, held_out, V);
    data.train = std::move(both.train);
    data.held_out = std::move(both.held_out);
    compare(data.train), compare(data.held_out);  // before they are split
    if (train_was_cut && held_out.empty()) {
      // The last tenth is held out, as it is if tokens are bytes.
      const int64_t size = data.train->size();
      REQUIRE(size >= 10, "the text '%s' has %lld tokens\n  expected at least 10, a tenth of which is held out",
              options.train_data.c_str(), (long long)size);
      auto [first, last] = data.train->split(size - size / 10);
      data.train = std::move(first);
      data.held_out = std::move(last);
    }
  } else if (!held_out.empty()) {
    held_out = shards_of(held_out, held_out_was_cut);
    data.held_out = TokenDataset::open(held_out, V);
    compare(data.held_out);
  }
  for (const auto* tokens : {&data.train, &data.held_out})
    REQUIRE(by_bytes || !*tokens || !(*tokens)->is_text(),
            "%s has a vocabulary of %d and no tokenizer that cuts a text into its tokens\n"
            "  name its tokenizer: --tokenizer DIR; or token files that were made with it: --%s 'DIR/*.bin'%s%s",
            options.model.c_str(), V, tokens == &data.train ? "train-data" : "val-data",
            codec.why_not().empty() ? "" : "\n  the one that was found: ", codec.why_not().c_str());
  for (const std::string& pattern : {options.train_data, options.val_data})
    if (const std::string differ = different_rules(pattern); !differ.empty()) data.remarks.push_back(differ);
  for (const auto* tokens : {&data.train, &data.held_out})
    if (*tokens) remark_about_headers(**tokens, data.remarks);
  if (options.trains()) data.chat = chat_of_data(options.train_data, V);
  if (options.trains() && !codec.reads_bytes())
    data.delimiter =
        train_was_cut ? Delimiter{codec.document_token().value_or(-1), -1} : delimiter_of(options.train_data, V);
  if (data.chat && !data.chat->remark.empty()) data.remarks.push_back(data.chat->remark);
  if (options.trains()) {
    std::string remark = options.val_data.empty() ? "" : files_in_both(*data.train, *data.held_out);
    if (remark.empty()) remark = held_out_by_name(options.train_data);
    if (!remark.empty()) data.remarks.push_back(remark);
  }
  codec.require_made(options.train_data);
  codec.require_made(options.val_data);
  if (options.special_tokens == "parse" && data.about_text.empty())
    data.remarks.push_back(
        "--special-tokens parse changes nothing: no text is cut into a tokenizer's tokens\n  write shards again "
        "with dev/data/prepare --special-tokens parse, or name the tokenizer of a text: --tokenizer DIR");
  if (options.eval_only && !options.packed_documents && data.held_out && packed_when_trained(model.directory))
    data.remarks.push_back(options.model +
                           " was trained with --packed-documents, and is measured without it: the loss is not "
                           "that of its run\n  add --packed-documents on");
  if (options.packed_documents)
    pack_documents(data, options, model, codec, start, train_was_cut, held_out_was_cut, letters);
  return data;
}
