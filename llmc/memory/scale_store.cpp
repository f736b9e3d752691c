#include "llmc/memory/scale_store.h"

#include <algorithm>

#include "llmc/base/error.h"

ScaleStore::ScaleStore(MemoryPlan& plan, const Fp8Settings& settings, const LlamaConfig& config,
                       Communicator& data_ranks, Device& device, Stream& compute, Stream& communication)
    : settings_(settings),
      tensors_(config.L * kProducts * kRoles),
      data_ranks_(data_ranks),
      compute_(compute),
      communication_(communication),
      computed_(device),
      compared_(device) {
  const size_t tensors = size_t(tensors_);
  const auto add = [&]<class U>(Planned<U>& planned, Segment segment, const char* name, size_t count) {
    planned = plan.add<U>(segment, "FP8 scales", name, count);
  };
  // The ranks compare both.
  add(planned_amax_, Segment::symmetric, "largest numbers of a pass", tensors);
  if (settings.delayed()) {
    add(planned_seen_, Segment::symmetric, "largest numbers of a step", tensors);
    add(planned_state_, Segment::device, "scales, largest numbers of earlier steps", state_size());
    add(planned_largest_, Segment::device, "largest numbers of the formats", tensors);
    add(planned_entries_, Segment::device, "steps seen", tensors);
  }
  if (settings.all_gather) add(planned_weights_not_finite_, Segment::device, "weights that are not finite", 1);
  add(planned_statistics_, Segment::device, "statistics", tensors);
  agree_ = [this](int number) {
    computed_.record(compute_);
    communication_.wait(computed_);
    data_ranks_.all_reduce_max(communication_, amax_ + number, 1);
    compared_.record(communication_);
    compute_.wait(compared_);
  };
}

void ScaleStore::bind(const Arena& arena, StepState* state) {
  state_ = state;
  amax_ = arena[planned_amax_];
  statistics_ = arena[planned_statistics_];
  if (settings_.all_gather) weights_not_finite_ = arena[planned_weights_not_finite_];
  if (!settings_.delayed()) return;
  seen_ = arena[planned_seen_];
  scale_ = arena[planned_state_];
  history_ = scale_ + tensors_;
  largest_ = arena[planned_largest_];
  entries_ = arena[planned_entries_];
}

size_t ScaleStore::state_size() const {
  return settings_.delayed() ? size_t(tensors_) * (size_t(settings_.history) + 1) : 0;
}

void ScaleStore::reset() { restore({std::vector<float>(size_t(tensors_), 1.0f), {}}); }

// Of a longer history than this run remembers the newest steps.
void ScaleStore::restore(const History& history) {
  const size_t tensors = size_t(tensors_), steps = std::min(history.amax.size() / tensors, size_t(settings_.history));
  REQUIRE(history.amax.size() % tensors == 0 && history.scales.size() == tensors,
          "an FP8 history of %zu numbers and %zu scales: the model has %zu tensors", history.amax.size(),
          history.scales.size(), tensors);
  recorded_ = int64_t(steps);
  words_ = {};
  clear(compute_, amax_, tensors);
  clear(compute_, statistics_, tensors);
  if (weights_not_finite_) fill_bytes(compute_, weights_not_finite_, kFiniteByte, sizeof(uint32_t));
  compute_.synchronize();
  if (!settings_.delayed()) return;
  std::vector<float> largest(tensors);
  for (int i = 0; i < tensors_; ++i) largest[size_t(i)] = largest_fp8(settings_.format(Role(i % kRoles)));
  const std::vector<uint32_t> entries(tensors, uint32_t(steps));
  clear(compute_, seen_, tensors);
  clear(compute_, history_, tensors * size_t(settings_.history));
  copy(compute_, history_, history.amax.data() + (history.amax.size() - steps * tensors), steps * tensors);
  copy(compute_, scale_, history.scales.data(), tensors);
  copy(compute_, largest_, largest.data(), tensors);
  copy(compute_, entries_, entries.data(), tensors);
  compute_.synchronize();
}

ScaleWords ScaleStore::weight_words() const {
  return {nullptr, settings_.delayed() && recorded_ > 0 ? scale_ : nullptr, seen_, counts_ ? statistics_ : nullptr};
}

void ScaleStore::begin_pass(bool training) {
  const bool known = settings_.delayed() && recorded_ > 0;
  if (!known) clear(compute_, amax_, size_t(tensors_));
  words_ = {amax_, known ? scale_ : nullptr, settings_.delayed() && training ? seen_ : nullptr,
            counts_ && training ? statistics_ : nullptr};
  agrees_ = training && settings_.delayed() && !known && data_ranks_.size() > 1;
}

void ScaleStore::start_comparing() {
  if (!settings_.delayed() || data_ranks_.size() == 1) return;
  data_ranks_.all_reduce_max(communication_, seen_, size_t(tensors_));
}

void ScaleStore::finish_step() {
  if (weights_not_finite_) copy(compute_, &state_->fp8_weights_not_finite, weights_not_finite_, 1);
  if (!settings_.delayed()) return;
  update_delayed_scales(compute_,
                        {seen_, scale_, history_, entries_, largest_, tensors_, settings_.history, settings_.latest,
                         settings_.power_of_two, settings_.margin},
                        &state_->fp8_overflows);
  ++recorded_;
}

ScaleStore::History ScaleStore::history(const float* copied, int64_t recorded) const {
  const size_t tensors = size_t(tensors_), length = size_t(settings_.history);
  const size_t steps = std::min(size_t(recorded), length);
  History history{{copied, copied + tensors}, {}};
  for (size_t s = 0; s < steps; ++s) {
    const float* entry = copied + (1 + (size_t(recorded) - steps + s) % length) * tensors;
    history.amax.insert(history.amax.end(), entry, entry + tensors);
  }
  return history;
}

ScaleStore::History ScaleStore::history() {
  std::vector<float> copied(state_size());
  copy(compute_, copied.data(), scale_, copied.size());
  compute_.synchronize();
  return history(copied.data(), recorded_);
}

void ScaleStore::count(bool on) {
  counts_ = on;
  if (!on) return;
  std::vector<QuantizeStatistics> none(size_t(tensors_), QuantizeStatistics{0, ~0u, 0, 0, 0, 0, 0});
  copy(compute_, statistics_, none.data(), none.size());
  compute_.synchronize();
}

std::vector<QuantizeStatistics> ScaleStore::statistics() {
  std::vector<QuantizeStatistics> statistics(static_cast<size_t>(tensors_));
  copy(compute_, statistics.data(), statistics_, statistics.size());
  compute_.synchronize();
  return statistics;
}
