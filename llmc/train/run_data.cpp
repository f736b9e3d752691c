#include "llmc/train/run_data.h"

#include "llmc/base/error.h"

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
  codec.require_made(options.train_data);
  codec.require_made(options.val_data);
  if (!options.packed_documents) return data;
  const auto rule = [&](const std::string& pattern) {
    return document_rule(pattern.empty() ? "the bundled text" : pattern, options.document_token, model.config);
  };
  if (data.train) data.documents = rule(options.train_data);
  if (data.held_out) data.held_out_documents = options.val_data.empty() ? data.documents : rule(options.val_data);
  return data;
}
