#include "llmc/memory/fp8_scales.h"

#include <algorithm>
#include <cmath>

#include "llmc/base/error.h"

Fp8Scales::Fp8Scales(MemoryPlan& plan, const Fp8Settings& settings, const LayerProjections& projections,
                     int64_t count_every, Communicator& all_ranks, Device& device, Stream& compute,
                     Stream& reduce_stream)
    : settings_(settings),
      projections_(projections),
      tensors_(projections.ids()),
      count_every_(count_every),
      device_(device),
      all_ranks_(all_ranks),
      compute_(compute),
      reduce_stream_(reduce_stream),
      computed_(device),
      compared_(device) {
  const size_t tensors = size_t(tensors_);
  const char* const category = "FP8 scales";
  amax_ = plan.add(Segment::symmetric, category, "largest numbers of a pass", DType::fp32, {tensors});
  if (settings.delayed()) {
    amax_step_ = plan.add(Segment::symmetric, category, "largest numbers of a step", DType::fp32, {tensors});
    state_ =
        plan.add(Segment::device, category, "scales, largest numbers of earlier steps", DType::fp32, {state_size()});
    largest_ = plan.add(Segment::device, category, "largest numbers of the formats", DType::fp32, {tensors});
    entries_ = plan.add_array<uint32_t>(Segment::device, category, "steps seen", tensors);
  }
  if (settings.all_gather)
    weights_not_finite_ = plan.add_array<uint32_t>(Segment::device, category, "weights that are not finite", 1);
  if (count_every) {
    statistics_ = plan.add_array<QuantizeStatistics>(Segment::device, category, "statistics", tensors);
    nothing_ = plan.add_array<QuantizeStatistics>(Segment::device, category, "statistics of nothing", tensors);
    counted_ = plan.add_array<QuantizeStatistics>(Segment::pinned, category, "statistics", kCountedSteps * tensors);
  }
  share_amax_ = [this](int tensor_id) {
    computed_.record(compute_);
    reduce_stream_.wait(computed_);
    all_ranks_.all_reduce_max(reduce_stream_, amax_->elements(tensor_id, 1));
    compared_.record(reduce_stream_);
    compute_.wait(compared_);
  };
}

size_t Fp8Scales::state_size() const {
  return settings_.delayed() ? size_t(tensors_) * (size_t(settings_.history) + 1) : 0;
}

void Fp8Scales::reset() { restore({std::vector<float>(size_t(tensors_), 0.0f), {}, {}}); }

// Returns the largest number of each tensor's format, 0 for a tensor that is not in FP8, and the settings by which
// scales are made.
std::vector<float> Fp8Scales::settings_numbers() const {
  std::vector<float> numbers(size_t(tensors_), 0.0f);
  for (const LayerProjection& p : projections_.all())
    for (const Role role : kEachRole)
      if (settings_.quantizes(p)) numbers[size_t(p.id(role))] = largest_fp8(settings_.format(role));
  for (const int setting : {settings_.history, int(settings_.latest), settings_.margin, int(settings_.power_of_two)})
    numbers.push_back(float(setting));
  return numbers;
}

void Fp8Scales::adopt(History& history) const {
  const std::vector<float> now = settings_numbers();
  if (history.settings.empty() || history.settings == now) return;
  const size_t tensors = size_t(tensors_), steps = history.amax.size() / tensors;
  const size_t remembered = std::min(steps, settings_.latest ? 1 : size_t(settings_.history));
  for (size_t i = 0; i < tensors; ++i) {
    const float before = history.settings.size() == now.size() ? history.settings[i] : 0;
    if (now[i] == 0) continue;
    if (before == 0) {
      history = {std::vector<float>(tensors, 0.0f), {}, {}};
      return;
    }
    float amax = 0;
    for (size_t s = steps - remembered; s < steps; ++s) amax = std::max(amax, history.amax[s * tensors + i]);
    if (amax > 0 && std::isfinite(amax))
      history.scales[i] =
          delayed_scale(amax, settings_.format(projections_.role(int(i))), settings_.margin, settings_.power_of_two);
    else if (now[i] != before) history.scales[i] = 0;
  }
}

// If the history is longer than this run remembers, the newest steps are restored.
void Fp8Scales::restore(History history) {
  const size_t tensors = size_t(tensors_);
  REQUIRE(history.amax.size() % tensors == 0 && history.scales.size() == tensors,
          "an FP8 history of %zu numbers and %zu scales: the model has %zu tensors", history.amax.size(),
          history.scales.size(), tensors);
  adopt(history);
  const size_t steps = std::min(history.amax.size() / tensors, size_t(settings_.history));
  recorded_ = int64_t(steps);
  refs_ = {};
  clear(compute_, amax_);
  const std::vector<QuantizeStatistics> nothing(tensors, QuantizeStatistics{0, ~0u, 0, 0, 0, 0, 0});
  if (count_every_) {
    copy(compute_, nothing_.get(), nothing.data(), tensors);
    copy(compute_, statistics_.get(), nothing_.get(), tensors);
  }
  counts_weights_ = count_every_ > 0;  // the number of the next step is not known here
  if (weights_not_finite_) fill_bytes(compute_, weights_not_finite_.get(), kFiniteByte, sizeof(uint32_t));
  compute_.synchronize();
  if (!settings_.delayed()) return;
  const std::vector<float> largest = settings_numbers();
  // A device that executes nothing computes no scales, so a missing one means nothing there.
  may_lack_scale_ = false;
  for (size_t i = 0; i < tensors && device_.executes(); ++i)
    may_lack_scale_ = may_lack_scale_ || (largest[i] != 0 && history.scales[i] == 0);
  const std::vector<uint32_t> entries(tensors, uint32_t(steps));
  clear(compute_, amax_step_);
  clear(compute_, earlier());
  copy(compute_, earlier().as<float>(), history.amax.data() + (history.amax.size() - steps * tensors), steps * tensors);
  copy(compute_, scale().as<float>(), history.scales.data(), tensors);
  copy(compute_, largest_->as<float>(), largest.data(), tensors);
  copy(compute_, entries_.get(), entries.data(), tensors);
  compute_.synchronize();
}

WeightScaleRefs Fp8Scales::weight_refs(uint32_t* not_finite) const {
  return {.scale = scales(),
          .amax_step = remembers_ ? amax_step_->as<float>() : nullptr,
          .statistics = counts_weights_ && remembers_ ? statistics_.get() : nullptr,
          .not_finite = not_finite,
          .power_of_two = settings_.power_of_two,
          .may_lack_scale = may_lack_scale_};
}

void Fp8Scales::begin_step(int64_t step) {
  step_ = step;
  counts_ = counted(step);
}

void Fp8Scales::begin_pass(bool training) {
  refs_ = {amax_->as<float>(), scales(), may_lack_scale_,
           settings_.delayed() && training && remembers_ ? amax_step_->as<float>() : nullptr,
           counts_ && training && remembers_ ? statistics_.get() : nullptr};
  if (refs_.needs_amax()) clear(compute_, amax_);
  shares_amax_ = training && settings_.delayed() && refs_.needs_amax() && all_ranks_.size() > 1;
}

void Fp8Scales::count_not_finite() { ::count_not_finite(compute_, step_state_, weights_not_finite_); }

void Fp8Scales::start_all_reduce() {
  if (!settings_.delayed() || all_ranks_.size() == 1) return;
  all_ranks_.all_reduce_max(reduce_stream_, amax_step_);
}

void Fp8Scales::update_scales() {
  if (counts_) copy(compute_, counted_ + slot_of(step_), statistics_.get(), size_t(tensors_));
  if (counts_ || counts_weights_) copy(compute_, statistics_.get(), nothing_.get(), size_t(tensors_));
  if (!settings_.delayed()) return;
  update_delayed_scales(
      compute_,
      {amax_step_->as<float>(), scale().as<float>(), earlier().as<float>(), entries_, largest_->as<float>(), tensors_,
       settings_.history, settings_.latest, settings_.power_of_two, settings_.margin},
      step_state_);
}

void Fp8Scales::count_step() {
  counts_ = false, counts_weights_ = counted(step_ + 1);
  if (settings_.delayed()) ++recorded_;
}

Fp8Scales::History Fp8Scales::history(const float* copied, int64_t recorded) const {
  const size_t tensors = size_t(tensors_), length = size_t(settings_.history);
  const size_t steps = std::min(size_t(recorded), length);
  History history{{copied, copied + tensors}, {}, settings_numbers()};
  for (size_t s = 0; s < steps; ++s) {
    const float* entry = copied + (1 + (size_t(recorded) - steps + s) % length) * tensors;
    history.amax.insert(history.amax.end(), entry, entry + tensors);
  }
  return history;
}

Fp8Scales::History Fp8Scales::history() {
  std::vector<float> copied(state_size());
  copy(compute_, copied.data(), state_->as<float>(), copied.size());
  compute_.synchronize();
  return history(copied.data(), recorded_);
}

std::vector<QuantizeStatistics> Fp8Scales::statistics(int64_t step) const {
  REQUIRE(counted(step) && step <= step_ && step + kCountedSteps > step_,
          "FP8 statistics of step %lld: counted is each %lldth, and step %lld is the last one", (long long)step,
          (long long)count_every_, (long long)step_);
  const QuantizeStatistics* counted = counted_ + slot_of(step);
  host_accesses(device_, "the FP8 statistics", {reads(counted, size_t(tensors_))});
  return {counted, counted + tensors_};
}
