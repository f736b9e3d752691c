// What a run measures of its model as it goes: the loss on fixed windows of held-out data, and questions with several
// answers. The figures do not depend on the number of ranks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/options.h"
#include "llmc/train/choices.h"
#include "llmc/train/documents.h"
#include "llmc/train/report.h"
#include "llmc/train/sampler.h"
#include "llmc/train/trainer.h"

struct EvaluationResult {
  std::optional<double> loss;           // nats a token
  std::optional<double> bits_per_byte;  // of the predicted text, where tokens are text
  std::optional<ChoiceScore> choices;
};

// "held-out loss 1.2345 nats a token | 1.78 bits a byte | uniform 5.5452 | unigram 3.3", and what choices score. Beside
// the loss stand those of a model that knows nothing of V tokens, and of one that knows only how often each occurs.
std::string evaluation_text(const EvaluationResult& result, int V, const std::optional<Unigram>& unigram);
// step, val_loss, val_bits_per_byte, choices_acc, …: those that were asked for.
Json evaluation_json(int64_t step, const EvaluationResult& result);

// How many windows of T held-out tokens --val-tokens asks for.
int64_t windows_to_measure(const Options& options, int T);

// Called as an evaluation goes on, with what it measures and how much of that is done.
using EvaluationProgress = std::function<void(const std::string& what, double fraction)>;
// Lines on the console: one for each tenth, and one each half minute.
EvaluationProgress progress_lines(Console& console);

class Evaluation {
 public:
  // This rank's part, in micro-batches of B sequences: of T tokens where the loss is measured, of the trainer's
  // `context` (0: T) where questions are answered.
  Evaluation(int rank, int ranks, int B, int T, int context = 0)
      : rank_(rank), ranks_(ranks), B_(B), T_(T), context_(context ? context : T) {}

  // Throws if no token of them is to be predicted. The codec outlives this.
  void measure_loss(ValidationWindows windows, std::optional<DocumentRule> documents, const TextCodec& codec);
  void ask_choices(std::vector<ChoiceItem> items) { items_ = std::move(items); }
  bool empty() const { return !windows_ && items_.empty(); }

  // "of which 16.4k are measured (--val-tokens)": of the held-out data, for people.
  std::string measured_text() const;

  // All ranks call; all get the same.
  EvaluationResult run(Trainer& trainer, const EvaluationProgress& progress = {});
  // Of each ending of this rank's items, which are i = rank, rank + ranks, …; all ranks call.
  std::vector<std::vector<float>> log_likelihoods(Trainer& trainer, const EvaluationProgress& progress = {});

 private:
  LossSum held_out_loss(Trainer& trainer, const EvaluationProgress& progress);
  ChoiceScore choices(Trainer& trainer, const EvaluationProgress& progress);
  void fill_windows(int64_t micro_step, int rank);

  const int rank_, ranks_, B_, T_, context_;
  const TextCodec* codec_ = nullptr;
  std::optional<ValidationWindows> windows_;
  std::optional<DocumentRule> documents_;
  std::optional<int64_t> predicted_bytes_;  // of the windows' labels; counted as they are first measured
  std::vector<ChoiceItem> items_;
  std::vector<int32_t> inputs_, labels_, positions_;
};
