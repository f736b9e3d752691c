#include "llmc/train/step_state_queue.h"

#include "llmc/base/error.h"

StepStateQueue::StepStateQueue(MemoryPlan& plan, Device& device, int sources)
    : device_(device),
      pinned_(plan.add_array<StepState>(Segment::pinned, "state", "step states", 2 * kSlots)),
      on_device_(plan.add_array<StepState>(Segment::device, "state", "step state", 1)) {
  if (sources > 1) {
    pinned_sums_ = plan.add(Segment::pinned, "state", "losses of sources", DType::fp64, {kSlots, sources, 2});
    source_sums_ = plan.add(Segment::device, "state", "losses of sources", DType::fp64, {sources, 2});
  }
  for (int i = 0; i < kSlots; ++i) begun_.emplace_back(device, true), returned_.emplace_back(device, true);
}

void StepStateQueue::send(Stream& stream, const StepState& state) {
  REQUIRE(under_way_ < kUnderWay, "more than %d steps were enqueued without asking for a result", kUnderWay);
  StepState* slot = pinned_ + next_;
  host_accesses(device_, "the next step's state", {writes(slot, 1)});
  *slot = state;
  follows_[next_] = under_way_ > 0;
  begun_[size_t(next_)].record(stream);
  copy(stream, on_device_.get(), slot, 1);
}

void StepStateQueue::fetch(Stream& stream) {
  copy(stream, pinned_ + kSlots + next_, on_device_.get(), 1);
  if (source_sums_) copy(stream, pinned_sums_->at(next_), source_sums_);
  returned_[size_t(next_)].record(stream);
  next_ = (next_ + 1) % kSlots;
  ++under_way_;
}

StepStateQueue::Returned StepStateQueue::wait_for_oldest(Communicator& communicator) {
  REQUIRE(under_way_ > 0, "the result of a step was asked for, and none is under way");
  const int slot = (next_ + kSlots - under_way_) % kSlots;
  --under_way_;
  communicator.wait_for(returned_[size_t(slot)]);
  host_accesses(device_, "the step's result", {reads(pinned_ + kSlots + slot, 1)});
  const Tensor sums = pinned_sums_->at(slot);
  if (sums) host_accesses(device_, "the step's losses by source", {reads(sums)});
  const Event& from = follows_[slot] ? returned_[size_t((slot + kSlots - 1) % kSlots)] : begun_[size_t(slot)];
  const double* first = sums.as<double>();
  return {
      pinned_[kSlots + slot], {first, first + sums.size()}, returned_[size_t(slot)].milliseconds_since(from) * 1e-3};
}
