#include "llmc/run/evaluation.h"

#include <algorithm>
#include <cmath>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/data/shard_manifest.h"
#include "llmc/kernels/classifier.h"

EvaluationProgress progress_lines(Console& console) {
  struct Shown {
    std::string what;
    double begin, time;
    int tenths = 0;
  };
  return [&console, shown = Shown()](const std::string& what, double fraction) mutable {
    const double now = seconds();
    if (what != shown.what) shown = {what, now, now};
    const int tenths = int(fraction * 10);
    if (fraction >= 1 || (tenths == shown.tenths && now - shown.time < 30)) return;
    shown.time = now, shown.tenths = tenths;
    console.progress(format("measured %2.0f%% of %s | eta %s", fraction * 100, what.c_str(),
                            human_duration((now - shown.begin) / fraction * (1 - fraction)).c_str()),
                     fraction);
  };
}

void Evaluation::measure_loss(ValidationWindows windows, std::optional<DocumentRule> documents,
                              const TextCodec& codec) {
  windows_ = std::move(windows);
  documents_ = documents;
  codec_ = &codec;
  const TokenDataset& data = windows_->windows().data();
  delimiters_ = delimiters_of(data);
  // Without a manifest: dev/data puts the byte 255 between documents, which no UTF-8 text has.
  if (codec.reads_bytes() && !data.is_text()) delimiters_.push_back(255);
  predicted_bytes_.reset();
  bool predicts = false;
  for (int64_t k = 0; !predicts && k < windows_->micro_batches(1, B_); ++k) {
    fill_windows(k, -1);
    predicts = std::any_of(labels_.begin(), labels_.end(), [](int32_t label) { return label != kIgnoredLabel; });
  }
  REQUIRE(predicts,
          "the %lld windows of %d held-out tokens have no token to learn: their masks are 0\n  name other "
          "data with --val-data",
          (long long)windows_->count(), T_);
}

Unigram Evaluation::unigram(const TokenDataset& train, const std::optional<DocumentRule>& documents) const {
  return unigram_cross_entropy(count_labels(train, documents), count_labels(*windows_, documents_));
}

std::string Evaluation::measured_text() const {
  if (!windows_) return "none of which are measured (--val-every 0)";
  if (windows_->all()) return "all of which are measured";
  return format("of which %s are measured (--val-tokens)", human_count(double(windows_->count()) * T_).c_str());
}

// Fills micro-step k of a rank; rank -1 stands for a single rank with all windows.
void Evaluation::fill_windows(int64_t k, int rank) {
  inputs_.resize(size_t(B_) * size_t(T_));
  labels_.resize(inputs_.size());
  windows_->fill(rank < 0 ? 1 : ranks_, B_, k, std::max(rank, 0), inputs_.data(), labels_.data());
  split_rows(documents_, inputs_, labels_, positions_, T_);
}

// Returns the bytes of text that a label stands for after its input.
int64_t Evaluation::bytes_of(int32_t label, int32_t input) const {
  const auto delimits = [&](int32_t token) { return std::ranges::find(delimiters_, token) != delimiters_.end(); };
  return delimits(label) ? 0 : codec_->bytes_of(label, delimits(input) || codec_->is_special(input));
}

LossSum Evaluation::held_out_loss(Trainer& trainer, const EvaluationProgress& progress) {
  LossSum sum;
  int64_t bytes = 0;
  const int64_t micro_batches = windows_->micro_batches(ranks_, B_);
  const std::string what = human_count(double(windows_->count()) * T_) + " held-out tokens";
  for (int64_t k = 0; k < micro_batches; ++k) {
    fill_windows(k, rank_);
    const LossSum part = trainer.evaluate(inputs_, labels_, positions_, T_);
    sum.nats += part.nats;
    sum.labels += part.labels;
    for (size_t i = 0; !predicted_bytes_ && trainer.is_leader() && i < labels_.size(); ++i)
      if (labels_[i] != kIgnoredLabel) bytes += bytes_of(labels_[i], inputs_[i]);
    if (progress) progress(what, double(k + 1) / double(micro_batches));
  }
  if (!predicted_bytes_) predicted_bytes_ = trainer.sum_over_ranks({0, bytes}).labels;
  return trainer.sum_over_ranks(sum);
}

// Each row of a micro-batch holds one ending of an item. Every rank computes as many micro-batches as the rank with the
// most endings.
std::vector<std::vector<float>> Evaluation::log_likelihoods(Trainer& trainer, const EvaluationProgress& progress) {
  std::vector<const ChoiceItem::Ending*> rows;
  std::vector<size_t> rows_of_rank(static_cast<size_t>(ranks_));
  for (size_t i = 0; i < items_.size(); ++i) {
    const size_t owner = i % size_t(ranks_);
    rows_of_rank[owner] += items_[i].endings.size();
    if (owner == size_t(rank_))
      for (const ChoiceItem::Ending& ending : items_[i].endings) rows.push_back(&ending);
  }
  const size_t B = size_t(B_), T = size_t(context_), most = *std::max_element(rows_of_rank.begin(), rows_of_rank.end());
  std::vector<float> sums;
  for (size_t first = 0; first < most; first += B) {
    inputs_.assign(B * T, 0);
    labels_.assign(B * T, kIgnoredLabel);
    for (size_t b = 0; b < B && first + b < rows.size(); ++b) {
      const auto& [tokens, begin, characters] = *rows[first + b];
      std::copy(tokens.begin(), tokens.end() - 1, inputs_.begin() + ptrdiff_t(b * T));
      std::copy(tokens.begin() + begin, tokens.end(), labels_.begin() + ptrdiff_t(b * T) + begin - 1);
    }
    const std::vector<float> losses = trainer.losses(inputs_, labels_);
    for (size_t b = 0; b < B && first + b < rows.size(); ++b) {
      float sum = 0;
      for (size_t t = 0; t < T; ++t) sum -= losses[b * T + t];
      sums.push_back(sum);
    }
    if (progress) progress(format("%zu questions", items_.size()), double(std::min(first + B, most)) / double(most));
  }
  std::vector<std::vector<float>> of_items;
  auto next = sums.begin();
  for (size_t i = size_t(rank_); i < items_.size(); i += size_t(ranks_)) {
    const auto end = next + ptrdiff_t(items_[i].endings.size());
    of_items.emplace_back(next, end);
    next = end;
  }
  return of_items;
}

ChoiceScore Evaluation::choices(Trainer& trainer, const EvaluationProgress& progress) {
  ChoiceScore score;
  size_t i = size_t(rank_);
  for (const std::vector<float>& of_item : log_likelihoods(trainer, progress)) {
    score.add(items_[i], of_item);
    i += size_t(ranks_);
  }
  if (!trainer.is_leader()) score = {};
  const LossSum one = trainer.sum_over_ranks({double(score.acc), score.acc_norm});
  const LossSum two = trainer.sum_over_ranks({double(score.acc_norm_tokens), score.items});
  double chance = 0;
  for (const ChoiceItem& item : items_) chance += 1 / double(item.endings.size()) / double(items_.size());
  return {two.labels, int64_t(one.nats), one.labels, int64_t(two.nats), chance};
}

EvaluationResult Evaluation::run(Trainer& trainer, const EvaluationProgress& progress) {
  EvaluationResult result;
  if (windows_) {
    const LossSum sum = held_out_loss(trainer, progress);
    result.loss = sum.mean();
    if (*predicted_bytes_ > 0) result.bits_per_byte = sum.nats / std::log(2.0) / double(*predicted_bytes_);
  }
  if (!items_.empty()) result.choices = choices(trainer, progress);
  return result;
}

namespace {

// Calls f(name, rate) for each way to score choices.
template <class F>
void for_each_rate(const ChoiceScore& c, F f) {
  f("acc", double(c.acc) / double(c.items));
  f("acc_norm", double(c.acc_norm) / double(c.items));
  f("acc_norm_tokens", double(c.acc_norm_tokens) / double(c.items));
}

}  // namespace

std::string evaluation_text(const EvaluationResult& result, int V, const std::optional<Unigram>& unigram) {
  std::string text;
  if (result.loss) {
    text +=
        format("held-out loss %.4f nats a token", std::abs(*result.loss));  // no loss is below 0, and no NaN is -nan
    if (result.bits_per_byte) text += format(" | %.4f bits a byte", std::abs(*result.bits_per_byte));
    text += format(" | uniform %.4f", std::log(double(V)));
    if (unigram) text += format(" | unigram %.4f", unigram->nats);
    if (unigram && unigram->tokens)
      text += format(" (counted in %s tokens)", human_count(double(unigram->tokens)).c_str());
  }
  if (!result.choices) return text;
  text += format("%s%lld choices", result.loss ? "\n  " : "", (long long)result.choices->items);
  for_each_rate(*result.choices, [&](const char* name, double rate) { text += format(" | %s %.4f", name, rate); });
  return text + format(" | chance %.4f", result.choices->chance);
}

Json evaluation_json(int64_t step, const EvaluationResult& result) {
  Json line = Json::object().set("step", step);
  if (result.loss) line.set("val_loss", json_number(*result.loss));
  if (result.bits_per_byte) line.set("val_bits_per_byte", json_number(*result.bits_per_byte));
  if (result.choices)
    for_each_rate(*result.choices,
                  [&](const char* name, double rate) { line.set(std::string("choices_") + name, rate); });
  return line;
}
