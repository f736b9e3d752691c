#include "llmc/run/estimate.h"

#include <algorithm>
#include <vector>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/text.h"

namespace {

constexpr double kShort = 0.2;  // seconds

// The first pass also loads kernels and wakes threads. Where that may count, a second one is timed, too.
double seconds_of_forward(Setup& setup, Trainer& trainer) {
  const RunSettings& s = setup.settings;
  std::vector<int32_t> inputs(size_t(s.B) * size_t(s.T)), labels(inputs.size());
  std::vector<int32_t> positions(setup.sampler->packs() ? inputs.size() : 0);
  setup.sampler->fill({s.G, setup.mesh.data_degree(), s.B}, setup.step_of_stage(setup.first_step()), 0,
                      setup.mesh.data_rank(), inputs.data(), labels.data(),
                      positions.empty() ? nullptr : positions.data());
  const auto timed = [&] {
    const double begin = seconds();
    try {
      trainer.evaluate(inputs, labels, positions, s.T);
    } catch (const Error& error) {  // the step itself says where such a number is
      if (error.exit_code != ExitCode::not_finite) throw;
    }
    return seconds() - begin;
  };
  const double first = timed();
  Stream stream(setup.device, "estimate");  // the ranks agree, for a pass may have collectives
  const bool again = setup.device.info().gpu || first < kShort;
  return broadcast_number(*setup.communicator, stream, again) ? std::min(first, timed()) : first;
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
  const double step = double(s.micro_batches) * forward * (3 + recomputed(s.activations));
  const double measured = double(setup.evaluation->micro_batches()) * forward;
  const double measurements = s.val_every ? double(steps) / double(s.val_every) + 1 : 0;
  std::string without = setup.ranks.size > 1 ? ", without what ranks send" : "";
  if (setup.options.optimizer == "muon")
    without += without.empty() ? ", without Muon's updates" : " and Muon's updates";
  setup.console.item(
      "estimate",
      format("a step about %s, the run about %s: three times what a forward pass took%s", about(step).c_str(),
             about(step * double(steps) + measured * measurements).c_str(), without.c_str()));
}
