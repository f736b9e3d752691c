#include "llmc/train/estimate.h"

#include <vector>

#include "llmc/base/clock.h"
#include "llmc/base/text.h"
#include "llmc/train/documents.h"

namespace {

// A GPU's first pass loads kernels and chooses algorithms; its second one is timed.
double seconds_of_forward(Setup& setup, Trainer& trainer) {
  const RunSettings& s = setup.settings;
  std::vector<int32_t> inputs(size_t(s.B) * size_t(s.T)), labels(inputs.size()), positions;
  setup.sampler->fill({s.G, setup.mesh.data_ranks(), s.B}, setup.first_step(), 0, setup.mesh.data_rank(), inputs.data(),
                      labels.data());
  cut_rows(setup.data.documents, inputs, labels, positions, s.T);
  if (setup.device.info().gpu) trainer.evaluate(inputs, labels, positions, s.T);
  const double begin = seconds();
  trainer.evaluate(inputs, labels, positions, s.T);
  return seconds() - begin;
}

// Returns the forward passes that backward computes again, of one of the whole model.
double recomputed(const ActivationPolicy& policy) {
  const double part = policy.recompute == Recompute::block ? 1 : policy.recompute == Recompute::mlp ? 0.6 : 0;
  return part / policy.recompute_every;
}

std::string about(double seconds) { return seconds < 1 ? format("%.0f ms", seconds * 1e3) : human_duration(seconds); }

}  // namespace

void print_estimate(Setup& setup, Trainer& trainer) {
  const RunSettings& s = setup.settings;
  const int64_t steps = s.steps - setup.first_step();
  if (steps == 0) return;
  const double forward = seconds_of_forward(setup, trainer);
  const double step = double(s.micro_steps) * forward * (3 + recomputed(s.activations));
  const double measured = double(setup.evaluation->micro_steps()) * forward;
  const double measurements = s.val_every ? double(steps) / double(s.val_every) + 1 : 0;
  setup.console.item("estimate",
                     format("a step about %s, the run about %s: three times what a forward pass took%s",
                            about(step).c_str(), about(step * double(steps) + measured * measurements).c_str(),
                            setup.ranks.size > 1 ? ", without what ranks send" : ""));
}
