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

void Evaluation::measure_loss(ValidationWindows windows, std::optional<DocumentRule> documents, const TextCodec& codec,
                              const std::string& source) {
  codec_ = &codec;
  held_out_.push_back({source, std::move(windows), documents, {}, {}});
  HeldOut& held_out = held_out_.back();
  const TokenDataset& data = held_out.windows.windows().data();
  held_out.delimiters = delimiters_of(data);
  // Without a manifest: dev/data puts the byte 255 between documents, which no UTF-8 text has.
  if (codec.reads_bytes() && !data.is_text()) held_out.delimiters.push_back(255);
  bool predicts = false;
  for (int64_t k = 0; !predicts && k < held_out.windows.micro_batches(1, B_); ++k) {
    fill_windows(held_out, k, -1);
    predicts = std::any_of(labels_.begin(), labels_.end(), [](int32_t label) { return label != kIgnoredLabel; });
  }
  REQUIRE(predicts,
          "%sthe %lld windows of %d held-out tokens have no token to learn: their masks are 0\n  name other "
          "data with --val-data",
          source.empty() ? "" : ("source " + source + ": ").c_str(), (long long)held_out.windows.count(), T_);
}

Unigram Evaluation::unigram(const LabelCounts& train) const {
  LabelCounts counts;
  for (const HeldOut& held_out : held_out_) counts.add(count_labels(held_out.windows, held_out.documents));
  return unigram_cross_entropy(train, counts);
}

int64_t Evaluation::micro_batches() const {
  int64_t sum = 0;
  for (const HeldOut& held_out : held_out_) sum += held_out.windows.micro_batches(ranks_, B_);
  return sum;
}

std::string Evaluation::measured_text(size_t source) const {
  if (held_out_.empty()) return "none of which are measured (--val-every 0)";
  const ValidationWindows& windows = held_out_[source].windows;
  if (windows.all()) return "all of which are measured";
  return format("of which %s are measured (--val-tokens)", human_count(double(windows.count()) * T_).c_str());
}

// Fills micro-step k of a rank; rank -1 stands for a single rank with all windows.
void Evaluation::fill_windows(const HeldOut& held_out, int64_t k, int rank) {
  inputs_.resize(size_t(B_) * size_t(T_));
  labels_.resize(inputs_.size());
  held_out.windows.fill(rank < 0 ? 1 : ranks_, B_, k, std::max(rank, 0), inputs_.data(), labels_.data());
  split_rows(held_out.documents, inputs_, labels_, positions_, T_);
}

// Returns the bytes of text that a label stands for after its input.
int64_t Evaluation::bytes_of(const HeldOut& held_out, int32_t label, int32_t input) const {
  const auto delimits = [&](int32_t token) {
    return std::ranges::find(held_out.delimiters, token) != held_out.delimiters.end();
  };
  return delimits(label) ? 0 : codec_->bytes_of(label, delimits(input) || codec_->is_special(input));
}

LossSum Evaluation::held_out_loss(Trainer& trainer, HeldOut& held_out, const EvaluationProgress& progress) {
  LossSum sum;
  int64_t bytes = 0;
  const int64_t micro_batches = held_out.windows.micro_batches(ranks_, B_);
  const std::string what = human_count(double(held_out.windows.count()) * T_) + " held-out tokens" +
                           (held_out.source.empty() ? "" : " of " + held_out.source);
  for (int64_t k = 0; k < micro_batches; ++k) {
    fill_windows(held_out, k, rank_);
    const LossSum part = trainer.evaluate(inputs_, labels_, positions_, T_);
    sum.nats += part.nats;
    sum.labels += part.labels;
    for (size_t i = 0; !held_out.predicted_bytes && trainer.is_leader() && i < labels_.size(); ++i)
      if (labels_[i] != kIgnoredLabel) bytes += bytes_of(held_out, labels_[i], inputs_[i]);
    if (progress) progress(what, double(k + 1) / double(micro_batches));
  }
  if (!held_out.predicted_bytes) held_out.predicted_bytes = trainer.sum_over_ranks({0, bytes}).labels;
  return trainer.sum_over_ranks(sum);
}

// The loss of all windows is the mean over the labels of all sources.
void Evaluation::measure_held_out(Trainer& trainer, const EvaluationProgress& progress, EvaluationResult& result) {
  const auto loss_of = [](const LossSum& sum, int64_t bytes) {
    HeldOutLoss loss{sum.mean(), {}};
    if (bytes > 0) loss.bits_per_byte = sum.nats / std::log(2.0) / double(bytes);
    return loss;
  };
  LossSum all;
  int64_t bytes = 0;
  for (HeldOut& held_out : held_out_) {
    const LossSum sum = held_out_loss(trainer, held_out, progress);
    all.nats += sum.nats, all.labels += sum.labels, bytes += *held_out.predicted_bytes;
    if (!held_out.source.empty()) result.sources.emplace_back(held_out.source, loss_of(sum, *held_out.predicted_bytes));
  }
  if (!held_out_.empty()) result.loss = loss_of(all, bytes);
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
  measure_held_out(trainer, progress, result);
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
    // No loss is below 0, and no NaN is -nan.
    text += format("held-out loss %.4f nats a token", std::abs(result.loss->nats));
    if (result.loss->bits_per_byte) text += format(" | %.4f bits a byte", std::abs(*result.loss->bits_per_byte));
    text += format(" | uniform %.4f", std::log(double(V)));
    if (unigram) text += format(" | unigram %.4f", unigram->nats);
    if (unigram && unigram->tokens)
      text += format(" (counted in %s tokens)", human_count(double(unigram->tokens)).c_str());
  }
  for (size_t i = 0; i < result.sources.size(); ++i)
    text += format("%s%s %.4f", i == 0 ? "\n  of " : ", ", result.sources[i].first.c_str(),
                   std::abs(result.sources[i].second.nats));
  if (!result.choices) return text;
  text += format("%s%lld choices", result.loss ? "\n  " : "", (long long)result.choices->items);
  for_each_rate(*result.choices, [&](const char* name, double rate) { text += format(" | %s %.4f", name, rate); });
  return text + format(" | chance %.4f", result.choices->chance);
}

Json evaluation_json(int64_t step, const EvaluationResult& result) {
  Json line = Json::object().set("step", step);
  const auto set = [&](const std::string& source, const HeldOutLoss& loss) {
    line.set("val_loss" + source, json_number(loss.nats));
    if (loss.bits_per_byte) line.set("val_bits_per_byte" + source, json_number(*loss.bits_per_byte));
  };
  if (result.loss) set("", *result.loss);
  for (const auto& [name, loss] : result.sources) set("/" + name, loss);
  if (result.choices)
    for_each_rate(*result.choices,
                  [&](const char* name, double rate) { line.set(std::string("choices_") + name, rate); });
  return line;
}
