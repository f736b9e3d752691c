#include "llmc/data/unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "llmc/base/error.h"
#include "llmc/kernels/classifier.h"

void LabelCounts::add(const LabelCounts& more, double times) {
  of_token.resize(std::max(of_token.size(), more.of_token.size()));
  for (size_t token = 0; token < more.of_token.size(); ++token) {
    const int64_t count = std::llround(double(more.of_token[token]) * times);
    of_token[token] += count, labels += count;
  }
  tokens += std::llround(double(more.tokens) * times), all = all && more.all;
}

LabelCounts count_labels(const ValidationWindows& windows, const std::optional<DocumentRule>& rule,
                         int64_t max_tokens) {
  const int T = windows.windows().T();
  const int64_t most = std::max<int64_t>(1, max_tokens / T), stride = (windows.count() + most - 1) / most;
  LabelCounts counts;
  counts.of_token.resize(size_t(windows.windows().data().vocab_size()));
  counts.all = stride == 1;
  std::vector<int32_t> inputs(static_cast<size_t>(T)), labels(inputs.size()), positions;
  for (int64_t i = 0; i < windows.count(); i += stride) {
    windows.windows().read(windows.place(i), inputs.data(), labels.data());
    split_rows(rule, inputs, labels, positions, T);
    counts.tokens += T;
    for (const int32_t label : labels)
      if (label != kIgnoredLabel) ++counts.of_token[size_t(label)], ++counts.labels;
  }
  if (counts.all && windows.all()) counts.tokens = windows.windows().data().size();  // the last window is not full
  return counts;
}

LabelCounts count_labels(const TokenDataset& data, const std::optional<DocumentRule>& rule, int64_t max_tokens) {
  const auto T = int(std::clamp<int64_t>(data.size() - 1, 1, 16384));
  return count_labels(ValidationWindows(data, T, std::numeric_limits<int64_t>::max()), rule, max_tokens);
}

LabelCounts count_labels(const DataSources& sources) {
  std::vector<LabelCounts> counts;
  std::vector<double> shares;  // of a label of each source
  for (const DataSource& source : sources) {
    counts.push_back(count_labels(source.tokens, source.documents));
    const int64_t labels = counts.back().labels;
    shares.push_back(labels ? double(source.weight) / double(labels) : 0);
  }
  const double most = *std::ranges::max_element(shares);
  LabelCounts all;
  for (size_t i = 0; i < counts.size(); ++i) all.add(counts[i], most > 0 ? shares[i] / most : 1);
  return all;
}

Unigram unigram_cross_entropy(const LabelCounts& train, const LabelCounts& held_out) {
  const size_t V = train.of_token.size();
  REQUIRE(V == held_out.of_token.size(),
          "the training data has a vocabulary of %zu tokens, the held-out data one of %zu\n  open both for the same "
          "model",
          V, held_out.of_token.size());
  double nats = 0;
  for (size_t token = 0; token < V; ++token) {
    const double p = double(train.of_token[token] + 1) / double(train.labels + int64_t(V));
    if (held_out.of_token[token] > 0) nats -= double(held_out.of_token[token]) * std::log(p);
  }
  return {nats / double(held_out.labels), train.all && held_out.all ? 0 : train.labels};
}
