#include "llmc/train/evaluation.h"

#include <algorithm>
#include <cmath>

#include "llmc/kernels/classifier.h"

void Evaluation::measure_loss(ValidationWindows windows, std::optional<DocumentRule> documents,
                              const TextCodec& codec) {
  windows_ = std::move(windows);
  documents_ = documents;
  predicted_bytes_ = 0;
  for (int64_t k = 0; k < windows_->micro_steps(1, B_); ++k) {
    fill_windows(k, -1);
    for (const int32_t label : labels_)
      if (label != kIgnoredLabel) predicted_bytes_ += codec.bytes_of(label);
  }
}

// Micro-step k of a rank, or of one that has all windows (-1).
void Evaluation::fill_windows(int64_t k, int rank) {
  inputs_.resize(size_t(B_) * size_t(T_));
  labels_.resize(inputs_.size());
  windows_->fill(rank < 0 ? 1 : ranks_, B_, k, std::max(rank, 0), inputs_.data(), labels_.data());
  positions_.resize(documents_ ? inputs_.size() : 0);
  for (size_t row = 0; row < positions_.size(); row += size_t(T_))
    cut_documents(*documents_, &inputs_[row], &labels_[row], &positions_[row], T_);
}

LossSum Evaluation::held_out_loss(Trainer& trainer) {
  LossSum sum;
  for (int64_t k = 0; k < windows_->micro_steps(ranks_, B_); ++k) {
    fill_windows(k, rank_);
    const LossSum part = trainer.evaluate(inputs_, labels_, positions_);
    sum.nats += part.nats;
    sum.labels += part.labels;
  }
  return trainer.sum_over_ranks(sum);
}

// Item i belongs to rank i % ranks; a row of a micro-batch is one of its endings, and every rank computes as many
// micro-batches as the one that has most.
ChoiceScore Evaluation::choices(Trainer& trainer) {
  struct Row {
    const ChoiceItem* item;
    size_t ending;
  };
  std::vector<Row> rows;
  std::vector<size_t> rows_of_rank(static_cast<size_t>(ranks_));
  for (size_t i = 0; i < items_.size(); ++i) {
    const size_t owner = i % size_t(ranks_), endings = items_[i].endings.size();
    rows_of_rank[owner] += endings;
    for (size_t e = 0; e < endings && owner == size_t(rank_); ++e) rows.push_back({&items_[i], e});
  }
  const size_t B = size_t(B_), T = size_t(T_), most = *std::max_element(rows_of_rank.begin(), rows_of_rank.end());
  ChoiceScore score;
  std::vector<float> log_likelihoods;  // of the item that is under way
  for (size_t first = 0; first < most; first += B) {
    inputs_.assign(B * T, 0);
    labels_.assign(B * T, kIgnoredLabel);
    for (size_t b = 0; b < B && first + b < rows.size(); ++b) {
      const ChoiceItem::Ending& ending = rows[first + b].item->endings[rows[first + b].ending];
      std::copy(ending.tokens.begin(), ending.tokens.end() - 1, inputs_.begin() + ptrdiff_t(b * T));
      std::copy(ending.tokens.begin() + ending.first, ending.tokens.end(),
                labels_.begin() + ptrdiff_t(b * T) + ending.first - 1);
    }
    const std::vector<float> losses = trainer.losses(inputs_, labels_);
    for (size_t b = 0; b < B && first + b < rows.size(); ++b) {
      float sum = 0;
      for (size_t t = 0; t < T; ++t) sum -= losses[b * T + t];
      log_likelihoods.push_back(sum);
      const ChoiceItem& item = *rows[first + b].item;
      if (log_likelihoods.size() < item.endings.size()) continue;
      score.add(item, log_likelihoods);
      log_likelihoods.clear();
    }
  }
  const LossSum one = trainer.sum_over_ranks({double(score.acc), score.acc_norm});
  const LossSum two = trainer.sum_over_ranks({double(score.acc_norm_tokens), score.items});
  return {two.labels, int64_t(one.nats), one.labels, int64_t(two.nats)};
}

EvaluationResult Evaluation::run(Trainer& trainer) {
  EvaluationResult result;
  if (windows_) {
    const LossSum sum = held_out_loss(trainer);
    result.loss = sum.mean();
    if (predicted_bytes_ > 0) result.bits_per_byte = sum.nats / std::log(2.0) / double(predicted_bytes_);
  }
  if (!items_.empty()) result.choices = choices(trainer);
  return result;
}
