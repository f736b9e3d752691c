#include "llmc/train/batch_feed.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/kernels/classifier.h"
#include "llmc/train/sampler.h"

BatchFeed::BatchFeed(MemoryPlan& plan, Device& device, Communicator& communicator, size_t tokens)
    : device_(device),
      communicator_(communicator),
      tokens_((tokens + 63) / 64 * 64),
      planned_pinned_(plan.add<int>(Segment::pinned, "batch", "tokens", kSlots * kParts * tokens_)),
      planned_device_(plan.add<int>(Segment::device, "batch", "tokens", kParts * tokens_)) {
  for (int i = 0; i < kSlots; ++i) sent_.emplace_back(device);
}

void BatchFeed::bind(const Arena& arena) {
  pinned_ = arena[planned_pinned_];
  on_device_ = arena[planned_device_];
}

void BatchFeed::send(Stream& stream, const int32_t* inputs, const int32_t* labels, const int32_t* positions, int B,
                     int T, int V, int first) {
  const size_t n = size_t(B) * size_t(T);
  REQUIRE(B > 0 && T > 0 && n <= tokens_, "a micro-batch of %d x %d tokens, planned were at most %zu", B, T, tokens_);
  for (size_t i = 0; i < n; ++i) {
    REQUIRE(inputs[i] >= 0 && inputs[i] < V, "token %d in row %zu, position %zu: the vocabulary has %d", inputs[i],
            i / T, i % T, V);
    REQUIRE(!labels || labels[i] == kIgnoredLabel || (labels[i] >= 0 && labels[i] < V),
            "label %d in row %zu, position %zu: the vocabulary has %d, and %d is ignored", labels[i], i / T, i % T, V,
            kIgnoredLabel);
    if (!positions) continue;
    const int t = int(i % T), position = positions[i];
    REQUIRE(
        position >= 0 && position < T && (t == 0 || position == 0 || position == positions[i - 1] + 1),
        "position %d at token %d of row %zu, after %d\n  expected the next one, below %d, or 0 where a document begins",
        position, t, i / T, t ? positions[i - 1] : -1, T);
  }
  Event& sent = sent_[size_t(slot_)];
  communicator_.wait_for(sent);
  int* slot = pinned_ + size_t(slot_) * kParts * tokens_;
  slot_ = (slot_ + 1) % kSlots;
  host_accesses(device_, "the next batch", {writes(slot, kParts * tokens_)});
  std::copy(inputs, inputs + n, slot);
  if (labels) std::copy(labels, labels + n, slot + tokens_);
  else std::fill(slot + tokens_, slot + tokens_ + n, kIgnoredLabel);
  packed_ = positions;
  for (size_t i = 0; i < n; ++i) {
    const int t = int(i % T), position = positions ? positions[i] : first + t;
    const bool begins = t == 0 || position == 0;
    slot[2 * tokens_ + i] = position;
    slot[4 * tokens_ + i] = begins ? t : slot[4 * tokens_ + i - 1];
  }
  sort_positions_by_token(inputs, int(n), slot + 3 * tokens_, sort_scratch_);
  copy(stream, on_device_, slot, kParts * tokens_);
  sent.record(stream);
}

BatchFeed::DeviceBatch BatchFeed::device_batch() const {
  return {on_device_, on_device_ + tokens_, on_device_ + 2 * tokens_, on_device_ + 3 * tokens_,
          packed_ ? on_device_ + 4 * tokens_ : nullptr};
}
