#include "llmc/train/spikes.h"

#include <algorithm>

#include "llmc/base/error.h"

Spikes::Spikes(MemoryPlan& plan, double deviations, int64_t most_in_a_row, Stream& compute)
    : compute_(compute),
      deviations_(deviations),
      most_in_a_row_(most_in_a_row),
      state_(plan.add(Segment::device, "state", "losses and norms of the last steps", DType::fp32,
                      {sizeof(SpikeWindow) / sizeof(float)})) {}

SpikeRule Spikes::rule() const { return {window(), deviations_, uint32_t(most_in_a_row_)}; }

void Spikes::set(const SpikeWindow& window) {
  copy(compute_, this->window(), &window, 1);
  compute_.synchronize();
}

void Spikes::restore(const Checkpoint& checkpoint) {
  const std::vector<float> losses = checkpoint.other("spike_losses"), norms = checkpoint.other("spike_norms"),
                           row = checkpoint.other("spikes_in_a_row");
  const float in_a_row = row.empty() ? 0 : row[0];
  REQUIRE(losses.size() == norms.size() && losses.size() <= SpikeWindow::kSteps && in_a_row >= 0 && in_a_row <= 1e9f,
          "%s: the window of the last steps has %zu losses and %zu norms, after %g spikes in a row\n  expected as many "
          "losses as norms, at most %u",
          checkpoint.path().c_str(), losses.size(), norms.size(), double(in_a_row), SpikeWindow::kSteps);
  SpikeWindow window{uint32_t(losses.size()), uint32_t(in_a_row), {}, {}};
  std::copy(losses.begin(), losses.end(), window.loss);
  std::copy(norms.begin(), norms.end(), window.grad_norm);
  set(window);
}

std::vector<NamedNumbers> Spikes::numbers(const Tensor& copied) {
  const auto& window = *static_cast<const SpikeWindow*>(copied.data);
  std::vector<NamedNumbers> numbers = {{"spikes_in_a_row", {float(window.in_a_row)}}};
  if (window.count == 0) return numbers;
  numbers.push_back({"spike_losses", {window.loss, window.loss + window.count}});
  numbers.push_back({"spike_norms", {window.grad_norm, window.grad_norm + window.count}});
  return numbers;
}

std::vector<NamedNumbers> Spikes::numbers() const {
  SpikeWindow copied;
  copy(compute_, &copied, window(), 1);
  compute_.synchronize();
  return numbers(Tensor(&copied, DType::fp32, {state_->size()}));
}
