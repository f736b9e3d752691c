// Memory that two streams use in turn.
//
//   writer   slots.begin_write(slot, gather)    waits until the slot's last reader is done
//            …                                  enqueues what fills the slot
//            slots.end_write(slot, gather)
//   reader   slots.begin_read(slot, compute)    waits until the slot is full
//            …
//            slots.end_read(slot, compute)
//
//   weights                 gather writes, compute reads
//   gradients               compute writes, reduce or offload reads; prefetch writes sums of earlier micro-batches
//   offloaded activations   compute writes and offload reads; in backward prefetch writes and compute reads
//
// Only streams wait, never the host. No event has a meaning in the next step: a captured graph ignores events from
// before it.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "llmc/config/parameters.h"
#include "llmc/device/device.h"
#include "llmc/memory/plan.h"

// The streams that copy memory to the host (`out`) and from it (`in`) while compute runs.
struct HostStreams {
  Stream out, in;
  explicit HostStreams(Device& device) : out(device, "offload"), in(device, "prefetch") {}
};

// Returns the slot of a unit where blocks use slots 0 .. block_slots-1 in turn. The head and the embedding share the
// slot after them; if the head is tied, both are in use at once, and the embedding has one more.
inline int slot_of(const ParameterLayout& layout, int unit, int block_slots) {
  const Unit& u = layout.units[size_t(unit)];
  return u.kind == UnitKind::block ? u.layer % block_slots
                                   : block_slots + (layout.tied && u.kind == UnitKind::embedding);
}

// Returns the elements of each slot, those of the largest unit that uses it; none if no unit does.
inline std::vector<size_t> slot_sizes(const ParameterLayout& layout, int block_slots,
                                      const std::function<bool(int unit)>& uses) {
  std::vector<size_t> sizes;
  for (int unit = 0; unit < int(layout.units.size()); ++unit) {
    if (!uses(unit)) continue;
    const size_t slot = size_t(slot_of(layout, unit, block_slots));
    sizes.resize(std::max(sizes.size(), slot + 1));
    sizes[slot] = std::max(sizes[slot], layout.units[size_t(unit)].size);
  }
  return sizes;
}

// Returns the units in the order of backward. The gradient of a tied embedding is needed with the head's.
inline std::vector<int> backward_order(const ParameterLayout& layout) {
  std::vector<int> order{layout.head_unit()};
  if (layout.tied) order.push_back(layout.embedding_unit());
  for (int unit = layout.head_unit() - 1; unit > layout.embedding_unit(); --unit) order.push_back(unit);
  if (!layout.tied) order.push_back(layout.embedding_unit());
  return order;
}

class Slots {
 public:
  Slots() = default;
  // Slots without memory of their own, for memory that is planned elsewhere.
  Slots(Device& device, int count) {
    for (int slot = 0; slot < count; ++slot) add(device, {});
  }
  void add(Device& device, PlannedTensor memory) {
    memory_.push_back(std::move(memory)), full_.emplace_back(device), free_.emplace_back(device);
  }
  bool empty() const { return full_.empty(); }
  int count() const { return int(full_.size()); }
  Tensor memory(int slot, size_t elements) const { return memory_[size_t(slot)]->elements(0, int64_t(elements)); }

  void begin_write(int slot, Stream& writer) { writer.wait(free_[size_t(slot)]); }
  void end_write(int slot, Stream& writer) { full_[size_t(slot)].record(writer); }
  void begin_read(int slot, Stream& reader) { reader.wait(full_[size_t(slot)]); }
  void end_read(int slot, Stream& reader) { free_[size_t(slot)].record(reader); }

 private:
  std::vector<PlannedTensor> memory_;
  std::vector<Event> full_, free_;
};
