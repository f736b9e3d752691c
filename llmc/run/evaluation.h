// Measures the model during a run: the loss on fixed windows of held-out data, and questions with several answers. The
// results do not depend on the number of ranks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/console.h"
#include "llmc/base/options.h"
#include "llmc/data/choices.h"
#include "llmc/data/documents.h"
#include "llmc/data/sampler.h"
#include "llmc/data/unigram.h"
#include "llmc/train/trainer.h"

struct HeldOutLoss {
  double nats = 0;                      // per token
  std::optional<double> bits_per_byte;  // of the predicted text, if tokens are text
};
struct EvaluationResult {
  std::optional<HeldOutLoss> loss;                           // of all windows
  std::vector<std::pair<std::string, HeldOutLoss>> sources;  // of each source of a mixture, by its name
  std::optional<ChoiceScore> choices;
};

// "held-out loss 1.2345 nats a token | 1.78 bits a byte | uniform 5.5452 | unigram 3.3", followed by the losses of the
// sources, the scores of the choices and that of a guess. `uniform` is the loss of a model that knows nothing about V
// tokens, `unigram` that of one that knows only how often each token occurs.
std::string evaluation_text(const EvaluationResult& result, int V, const std::optional<Unigram>& unigram);
// Returns step, val_loss, val_bits_per_byte, val_loss/web, …, choices_acc, …: those that were measured.
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

  // Measures these windows, too. `source` is the name of their source in a mixture; else "". Throws if the windows have
  // no token to predict. The codec must outlive this object.
  void measure_loss(ValidationWindows windows, std::optional<DocumentRule> documents, const TextCodec& codec,
                    const std::string& source = "");
  void ask_choices(std::vector<ChoiceItem> items) { items_ = std::move(items); }
  bool empty() const { return held_out_.empty() && items_.empty(); }

  // Returns the loss on the same windows of a model that knows only how often each token is a label in `train`.
  Unigram unigram(const LabelCounts& train) const;

  // Returns how many micro-batches each rank computes for the loss.
  int64_t micro_batches() const;
  // "of which 16.4k are measured (--val-tokens)": the measured part of held-out source number `source`, in words.
  std::string measured_text(size_t source = 0) const;

  // All ranks call and get the same result.
  EvaluationResult run(Trainer& trainer, const EvaluationProgress& progress = {});
  // Returns the log-likelihood of each ending of this rank's items, which are i = rank, rank + ranks, …. All ranks
  // call.
  std::vector<std::vector<float>> log_likelihoods(Trainer& trainer, const EvaluationProgress& progress = {});

 private:
  struct HeldOut {
    std::string source;
    ValidationWindows windows;
    std::optional<DocumentRule> documents;
    std::vector<int32_t> delimiters;         // tokens between the documents of the windows, which are no text
    std::optional<int64_t> predicted_bytes;  // of the windows' labels; counted in the first measurement
  };
  void measure_held_out(Trainer& trainer, const EvaluationProgress& progress, EvaluationResult& result);
  LossSum held_out_loss(Trainer& trainer, HeldOut& held_out, const EvaluationProgress& progress);
  ChoiceScore choices(Trainer& trainer, const EvaluationProgress& progress);
  void fill_windows(const HeldOut& held_out, int64_t micro_batch, int rank);
  int64_t bytes_of(const HeldOut& held_out, int32_t label, int32_t input) const;

  const int rank_, ranks_, B_, T_, context_;
  const TextCodec* codec_ = nullptr;
  std::vector<HeldOut> held_out_;
  std::vector<ChoiceItem> items_;
  std::vector<int32_t> inputs_, labels_, positions_;
};
