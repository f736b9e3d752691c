#include "llmc/train/run_data.h"

#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/train/shard_manifest.h"

namespace {

// A sentence about the training files that are also held-out files, whatever their paths; "" if there are none.
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

}  // namespace

RunData open_run_data(const Options& options, const ModelSource& model, const TextCodec& codec) {
  RunData data;
  const int V = model.config.V;
  const bool named = !options.train_data.empty(), by_bytes = V <= 256 || !model.weights;
  const bool trains = !options.sample_only && !options.eval_only;
  if (named || trains || (options.val_data.empty() && by_bytes)) {
    TrainingData both = open_training_data(named ? options.train_data : bundled_text(), options.val_data, V);
    data.train = std::move(both.train);
    data.held_out = std::move(both.held_out);
  } else if (!options.val_data.empty()) {
    data.held_out = TokenDataset::open(options.val_data, V);
  }
  for (const auto* tokens : {&data.train, &data.held_out})
    REQUIRE(by_bytes || !*tokens || !(*tokens)->is_text(),
            "%s has a vocabulary of %d, and a text is read byte by byte: these are not its tokens\n"
            "  name token files that were made with its tokenizer: --%s 'DIR/*.bin'",
            options.model.c_str(), V, tokens == &data.train ? "train-data" : "val-data");
  for (const auto* tokens : {&data.train, &data.held_out})
    if (*tokens) std::ranges::move(compare_with_manifests(**tokens), std::back_inserter(data.remarks));
  if (trains && !options.val_data.empty())
    if (const std::string both = files_in_both(*data.train, *data.held_out); !both.empty())
      data.remarks.push_back(both);
  codec.require_made(options.train_data);
  codec.require_made(options.val_data);
  if (!options.packed_documents) return data;
  constexpr const char* way_out =
      ": it would change nothing\n  name the token that begins each document with --document-token, or leave "
      "--packed-documents away";
  const auto rule = [&](const std::string& pattern) {
    return document_rule(pattern.empty() ? "the bundled text" : pattern, options.document_token, model.config);
  };
  if (data.train) data.documents = rule(options.train_data);
  if (data.held_out) data.held_out_documents = options.val_data.empty() ? data.documents : rule(options.val_data);
  if (data.held_out)
    if (const std::string missing = missing_documents(*data.held_out_documents, *data.held_out); !missing.empty()) {
      REQUIRE(trains, "--packed-documents: %s%s", missing.c_str(), way_out);
      data.remarks.push_back("--packed-documents changes nothing of the held-out loss: " + missing);
    }
  if (trains)
    if (const std::string missing = missing_documents(*data.documents, *data.train); !missing.empty())
      fail("--packed-documents: %s%s", missing.c_str(), way_out);
  return data;
}
