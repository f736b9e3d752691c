// What a run measures of its model as it goes: the loss on fixed windows of held-out data, and questions with several
// answers. The figures do not depend on the number of ranks.
#pragma once

#include <optional>
#include <vector>

#include "llmc/train/choices.h"
#include "llmc/train/documents.h"
#include "llmc/train/sampler.h"
#include "llmc/train/trainer.h"

struct EvaluationResult {
  std::optional<double> loss;           // nats a token
  std::optional<double> bits_per_byte;  // of the predicted text, where tokens are text
  std::optional<ChoiceScore> choices;
};

// "held-out loss 1.2345 nats a token | 1.78 bits a byte | uniform 5.5452 | unigram 3.3", and what choices score. Beside
// the loss stand those of a model that knows nothing of V tokens, and of one that knows only how often each occurs.
std::string evaluation_text(const EvaluationResult& result, int V, std::optional<double> unigram);
// step, val_loss, val_bits_per_byte, choices_acc, …: those that were asked for.
Json evaluation_json(int64_t step, const EvaluationResult& result);

class Evaluation {
 public:
  // This rank's part, in micro-batches of B sequences: of T tokens where the loss is measured, of the trainer's
  // `context` (0: T) where questions are answered.
  Evaluation(int rank, int ranks, int B, int T, int context = 0)
      : rank_(rank), ranks_(ranks), B_(B), T_(T), context_(context ? context : T) {}

  // Throws if no token of them is to be predicted.
  void measure_loss(ValidationWindows windows, std::optional<DocumentRule> documents, const TextCodec& codec);
  void ask_choices(std::vector<ChoiceItem> items) { items_ = std::move(items); }
  bool empty() const { return !windows_ && items_.empty(); }

  // All ranks call; all get the same.
  EvaluationResult run(Trainer& trainer);
  // Of each ending of this rank's items, which are i = rank, rank + ranks, …; all ranks call.
  std::vector<std::vector<float>> log_likelihoods(Trainer& trainer);

 private:
  LossSum held_out_loss(Trainer& trainer);
  ChoiceScore choices(Trainer& trainer);
  void fill_windows(int64_t micro_step, int rank);

  const int rank_, ranks_, B_, T_, context_;
  std::optional<ValidationWindows> windows_;
  std::optional<DocumentRule> documents_;
  int64_t predicted_bytes_ = 0;
  std::vector<ChoiceItem> items_;
  std::vector<int32_t> inputs_, labels_, positions_;
};
