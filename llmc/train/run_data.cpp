#include "llmc/train/run_data.h"

#include "llmc/base/error.h"
#include "llmc/train/text_shards.h"

RunData open_run_data(const Options& options, const ModelSource& model, const TextCodec& codec,
                      Communicator& communicator, Device& device, Console& console) {
  RunData data;
  const int V = model.config.V, rank = communicator.rank(), ranks = communicator.size();
  const bool named = !options.train_data.empty(), cuts = codec.cuts_text(), by_bytes = V <= 256 || !model.weights;
  const bool trains = !options.sample_only && !options.eval_only;
  // Shards as they are named; of text, its tokens.
  bool train_was_cut = false, held_out_was_cut = false;
  const auto shards_of = [&](const std::string& pattern, bool& was_cut) {
    was_cut = is_text(pattern, cuts) && cuts;
    if (!was_cut) return pattern;
    const TextShards shards = cut_text(pattern, codec, communicator, device, console);
    data.about_text.push_back(shards.about);
    return shards.pattern;
  };
  std::string train = options.train_data, held_out = options.val_data;
  if (named || trains || (held_out.empty() && by_bytes)) {
    train = shards_of(named ? train : bundled_text(), train_was_cut);
    if (!held_out.empty()) held_out = shards_of(held_out, held_out_was_cut);
    TrainingData both = open_training_data(train, held_out, V, rank, ranks);
    data.train = std::move(both.train);
    data.held_out = std::move(both.held_out);
    if (train_was_cut && held_out.empty()) {
      // The last tenth, as of bytes.
      const int64_t size = data.train->size();
      REQUIRE(size >= 10, "the text '%s' has %lld tokens\n  expected at least 10, a tenth of which is held out",
              options.train_data.c_str(), (long long)size);
      auto [first, last] = data.train->split(size - size / 10);
      data.train = std::move(first);
      data.held_out = std::move(last);
    }
  } else if (!held_out.empty()) {
    held_out = shards_of(held_out, held_out_was_cut);
    data.held_out = TokenDataset::open(held_out, V, rank, ranks);
  }
  for (const auto* tokens : {&data.train, &data.held_out})
    REQUIRE(by_bytes || !*tokens || !(*tokens)->is_text(),
            "%s has a vocabulary of %d and no tokenizer that cuts a text into its tokens\n"
            "  name its tokenizer: --tokenizer DIR; or token files that were made with it: --%s 'DIR/*.bin'%s%s",
            options.model.c_str(), V, tokens == &data.train ? "train-data" : "val-data",
            codec.why_not().empty() ? "" : "\n  the one that was found: ", codec.why_not().c_str());
  codec.require_made(options.train_data);
  codec.require_made(options.val_data);
  if (!options.packed_documents) return data;
  const auto rule = [&](const std::string& pattern, bool was_cut) {
    if (options.document_token < 0 && was_cut && codec.document_token())
      return DocumentRule{*codec.document_token(), true};
    return document_rule(pattern.empty() ? "the bundled text" : pattern, options.document_token, model.config);
  };
  if (data.train) data.documents = rule(options.train_data, train_was_cut);
  if (data.held_out)
    data.held_out_documents = options.val_data.empty() ? data.documents : rule(options.val_data, held_out_was_cut);
  return data;
}
