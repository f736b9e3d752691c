#include "llmc/run/spike_report.h"

#include <algorithm>

#include "llmc/kernels/classifier.h"
#include "llmc/run/setup.h"
#include "llmc/train/trainer.h"

namespace {

// Sequences first .. first+count-1 of a step's G, and how much they add to the spike.
struct Sequences {
  int64_t first, count;
  double loss, grad_norm;  // of a step that learns from them alone; 0 if it has no labels
  double weight;           // the loss, or the norm of the sum of their gradients
};

class Search {
 public:
  Search(const Setup& setup, Trainer& trainer, const StepInput& input, bool by_loss)
      : setup_(setup), trainer_(trainer), input_(input), by_loss_(by_loss) {}

  // The sequence that stands out is in the half with the larger weight.
  Sequences run() {
    Sequences all = of(0, setup_.settings.G);
    while (all.count > 1) {
      const int64_t half = all.count / 2;
      const Sequences left = of(all.first, half), right = of(all.first + half, all.count - half);
      all = right.weight > left.weight ? right : left;
    }
    return all;
  }

 private:
  Sequences of(int64_t first, int64_t count) {
    const RunSettings& s = setup_.settings;
    const BatchLayout layout{s.G, setup_.mesh.data_degree(), s.B};
    std::vector<int32_t> labels(input_.labels.begin(), input_.labels.end());
    auto row = labels.begin();
    for (int64_t k = 0; k < s.micro_batches; ++k)
      for (int b = 0; b < s.B; ++b, row += s.T) {
        const int64_t number = layout.sequence(0, k, setup_.mesh.data_rank(), b);
        if (number < first || number >= first + count) std::fill_n(row, s.T, kIgnoredLabel);
      }
    StepInput again = input_;
    again.labels = labels, again.no_graph = true;
    trainer_.enqueue_step(again);
    const StepResult r = trainer_.wait_for_step();
    if (r.label_count == 0) return {first, count, 0, 0, 0};
    return {first, count, r.loss, r.grad_norm, by_loss_ ? r.loss : r.grad_norm * double(r.label_count)};
  }

  const Setup& setup_;
  Trainer& trainer_;
  const StepInput& input_;
  const bool by_loss_;
};

}  // namespace

std::string find_spike(Setup& setup, Trainer& trainer, const StepInput& input, bool by_loss) {
  const RunSettings& s = setup.settings;
  const Sequences found = Search(setup, trainer, input, by_loss).run();
  const int64_t sequences = int64_t(setup.mesh.data_degree()) * s.B;  // of all ranks' micro-batches
  const int64_t micro_batch = found.first / sequences, data_rank = found.first % sequences / s.B,
                row = found.first % s.B;
  Stream stream(setup.device, "search");
  const std::vector<int64_t> data_ranks = gather_numbers(*setup.communicator, stream, setup.mesh.data_rank());
  const int64_t rank = std::find(data_ranks.begin(), data_ranks.end(), data_rank) - data_ranks.begin();
  const Sampler::Place place = setup.sampler->place(setup.step_of_stage(input.step) * s.G + found.first);
  return format(
             "one sequence stands out by its %s: alone it has the loss %.4g and the gradient norm %.4g; it is%s in "
             "micro-batch %lld of %lld\n  data: sequence %lld of %d: ",
             by_loss ? "loss" : "gradients", found.loss, found.grad_norm,
             setup.ranks.size == 1 ? "" : format(" on rank %lld of %d,", (long long)rank, setup.ranks.size).c_str(),
             (long long)micro_batch + 1, (long long)s.micro_batches, (long long)row + 1, s.B) +
         setup.data.train[size_t(place.source)].tokens.where(place.start, place.tokens) +
         "\n  look at this data; if it is in order, a larger --skip-spikes or --bad-steps-limit, an earlier checkpoint "
         "or a lower --lr may help";
}
