// The loss of a model that knows only how often each token occurs. A held-out loss below it shows that the model uses
// the context.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "llmc/data/data_sources.h"
#include "llmc/data/documents.h"
#include "llmc/data/sampler.h"

// How often each token is a label: the first token of all is none, nor is one that a mask leaves out or that begins
// another document (split_documents).
struct LabelCounts {
  std::vector<int64_t> of_token;  // (V)
  int64_t labels = 0;             // their sum
  int64_t tokens = 0;             // among which they are: labels and others
  bool all = true;                // false: only some windows were counted

  // Adds the counts of other data of the same vocabulary, each multiplied by `times` and rounded.
  void add(const LabelCounts& more, double times = 1);
};

// Counts the labels of the windows, or of some that are evenly spread and have at most `max_tokens` tokens together.
// Reading a terabyte for this one figure would not be worth the wait.
LabelCounts count_labels(const ValidationWindows& windows, const std::optional<DocumentRule>& rule,
                         int64_t max_tokens = 10'000'000);
// Counts those of a whole dataset.
LabelCounts count_labels(const TokenDataset& data, const std::optional<DocumentRule>& rule,
                         int64_t max_tokens = 10'000'000);

// Counts those of training data. Of a mixture, each source's labels have its share in all, and no label counts more
// than once.
LabelCounts count_labels(const DataSources& sources);

// Mean of -log p(label) over the labels of `held_out`, in nats. p is the frequency of the label in `train`, with one
// added to the count of every token of the vocabulary. Throws if the vocabularies differ.
struct Unigram {
  double nats;
  int64_t tokens;  // labels of `train` that were counted; 0: all
};
Unigram unigram_cross_entropy(const LabelCounts& train, const LabelCounts& held_out);
