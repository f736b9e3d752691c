// Measures the model during a run: the loss on fixed windows of held-out data, and questions with several answers. The
// results do not depend on the number of ranks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/console.h"
#include "llmc/base/options.h"
#include "llmc/data/choices.h"
#include "llmc/data/documents.h"
#include "llmc/data/sampler.h"
#include "llmc/data/unigram.h"
#include "llmc/train/trainer.h"

struct EvaluationResult {
  std::optional<double> loss;           // nats per token
  std::optional<double> bits_per_byte;  // of the predicted text, if tokens are text
  std::optional<ChoiceScore> choices;
};

// "held-out loss 1.2345 nats a token | 1.78 bits a byte | uniform 5.5452 | unigram 3.3", followed by the scores of the
// choices and that of a guess. `uniform` is the loss of a model that knows nothing about V tokens, `unigram` that of
// one that knows only how often each token occurs.
std::string evaluation_text(const EvaluationResult& result, int V, const std::optional<Unigram>& unigram);
// Returns step, val_loss, val_bits_per_byte, choices_acc, …: those that were measured.
Json evaluation_json(int64_t step, const EvaluationResult& result);

// Called during an evaluation, with what it measures and the fraction that is done.
using EvaluationProgress = std::function<void(const std::string& what, double fraction)>;
// Prints lines on the console: one per tenth, and one whenever 30 seconds have passed without one.
EvaluationProgress progress_lines(Console& console);

class Evaluation {
 public:
  // Measures this rank's part in micro-batches of B sequences: of T tokens for the loss, of the trainer's `context`
  // (0: T) for questions.
  Evaluation(int rank, int ranks, int B, int T, int context = 0)
      : rank_(rank), ranks_(ranks), B_(B), T_(T), context_(context ? context : T) {}

  // Throws if the windows have no token to predict. The codec must outlive this object.
  void measure_loss(ValidationWindows windows, std::optional<DocumentRule> documents, const TextCodec& codec);
  void ask_choices(std::vector<ChoiceItem> items) { items_ = std::move(items); }
  bool empty() const { return !windows_ && items_.empty(); }

  // Returns the loss on the same windows of a model that knows only how often each token is a label in `train`.
  Unigram unigram(const TokenDataset& train, const std::optional<DocumentRule>& documents) const;

  // Returns how many micro-batches each rank computes for the loss.
  int64_t micro_batches() const { return windows_ ? windows_->micro_batches(ranks_, B_) : 0; }
  // "of which 16.4k are measured (--val-tokens)": the measured part of the held-out data, in words.
  std::string measured_text() const;

  // All ranks call and get the same result.
  EvaluationResult run(Trainer& trainer, const EvaluationProgress& progress = {});
  // Returns the log-likelihood of each ending of this rank's items, which are i = rank, rank + ranks, …. All ranks
  // call.
  std::vector<std::vector<float>> log_likelihoods(Trainer& trainer, const EvaluationProgress& progress = {});

 private:
  LossSum held_out_loss(Trainer& trainer, const EvaluationProgress& progress);
  ChoiceScore choices(Trainer& trainer, const EvaluationProgress& progress);
  void fill_windows(int64_t micro_batch, int rank);
  int64_t bytes_of(int32_t label, int32_t input) const;

  const int rank_, ranks_, B_, T_, context_;
  const TextCodec* codec_ = nullptr;
  std::optional<ValidationWindows> windows_;
  std::optional<DocumentRule> documents_;
  std::vector<int32_t> delimiters_;         // tokens between the documents of the windows, which are no text
  std::optional<int64_t> predicted_bytes_;  // of the windows' labels; counted in the first measurement
  std::vector<ChoiceItem> items_;
  std::vector<int32_t> inputs_, labels_, positions_;
};
