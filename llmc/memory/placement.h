// Which elements of each unit a rank keeps, and with which ranks it shares the unit (ZeRO: Rajbhandari et al. 2020;
// PyTorch's FSDP). place_units() alone knows the ZeRO stage; the stores see intervals and communicators.
//
// `own` is one of the equal parts into which the ranks that shard cut a unit. FSDP calls it the rank's shard.
//
//   stage   state   gradients   weights
//     0     whole   whole       whole
//     1     own     whole       whole      (own, if the unit is gathered as FP8 bytes)
//     2     own     own         whole      (own, if the unit is gathered as FP8 bytes)
//     3     own     own         own
//
// Weights that lie in the host's memory are whole in stage 0, and a rank's own part in the others. A unit's are copied
// to the device where they are used; of parts the ranks gather the whole.
//
// A shard is an interval of a unit. A slice is an interval of a tensor. A chunk is an interval of rows, of tokens, or
// of what is copied.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/config/parameters.h"
#include "llmc/device/tensor.h"

// Elements first .. end()-1 of a unit: all of it, a rank's own part, or elements of that part.
struct Shard {
  size_t first, count;
  size_t end() const { return first + count; }
  bool contains(const Shard& s) const { return first <= s.first && s.end() <= end(); }
  bool operator==(const Shard&) const = default;
};

// The ranks that share a unit.
struct ShardGroup {
  // `gather` and `reduce` span the same ranks, each of which owns a part of the unit. They are two communicators
  // because the all-gather of weights runs at the same time as the reduce-scatter of gradients. `replicate` spans the
  // ranks that own the same part.
  Communicator &gather, &reduce, &replicate;
  // The ranks of a tensor-parallel group: `tp_reduce` for the reduce stream, `tp_gather` for the gather stream.
  // `kv_replicas` spans those of them that have the same key and value heads. Null: there is no such group.
  Communicator *tp_reduce = nullptr, *kv_replicas = nullptr, *tp_gather = nullptr;

  int degree() const { return gather.size(); }
  int rank() const { return gather.rank(); }
  bool sums_gradients() const { return degree() > 1 || replicate.size() > 1 || tp_reduce; }
  // numbers = the maximum over the ranks that shard and the tensor-parallel ranks, which together have all parts of the
  // unit's weights. The communicators belong to the gather stream.
  void all_reduce_max_over_parts(Stream& gather_stream, const Tensor& numbers) const {
    gather.all_reduce_max(gather_stream, numbers);
    if (tp_gather) tp_gather->all_reduce_max(gather_stream, numbers);
  }
  // Returns the tensor-parallel ranks that have the same elements of a tensor, over which its gradient must be summed.
  // Null: there are no others.
  Communicator* ranks_with_copies(const ParameterInfo& tensor) const {
    return tensor.copies == 1 ? nullptr : tensor.row->cut == Cut::none ? tp_reduce : kv_replicas;
  }
};

struct UnitPlacement {
  const ShardGroup* group;
  Shard whole, own;                 // the unit; this rank's part of it, in every stage
  Shard saved;                      // what this rank writes to a checkpoint: the replicas divide `own` among them
  Shard state, gradients, weights;  // what this rank keeps between uses: `whole` or `own`
  bool in_bytes;                    // its weights are gathered, or come from the host, as FP8 bytes
  bool weights_on_host;             // what this rank keeps of its weights lies in the host's memory

  // The stores ask these and updates_contiguous(), and compare no shards themselves.
  bool updates_part() const { return state != whole; }  // an update writes only `own` here, and other ranks the rest
  bool reduces_each_micro_batch() const { return gradients != whole; }  // else once, after the last micro-batch
  // Its whole weights are not kept on the device, but gathered into a slot.
  bool needs_slot() const { return weights != whole || weights_on_host; }
};
using Placement = std::vector<UnitPlacement>;  // one for each unit

// `zero_stage` is Mesh::effective_stage(). `in_bytes` says which units are sent as FP8 bytes if they are sent at all;
// `weights_on_host`, where the weights of all units lie. `group` must outlive the result.
inline Placement place_units(const ParameterLayout& layout, int zero_stage, const ShardGroup& group,
                             const std::function<bool(int unit)>& in_bytes, bool weights_on_host = false) {
  Placement placement;
  const size_t replicas = size_t(group.replicate.size()), replica = size_t(group.replicate.rank());
  for (int unit = 0; unit < int(layout.units.size()); ++unit) {
    const size_t part = layout.part_size(unit), begin = part * replica / replicas;
    const Shard whole{0, layout.units[size_t(unit)].size}, own{size_t(group.rank()) * part, part};
    const Shard saved{own.first + begin, part * (replica + 1) / replicas - begin};
    const bool bytes = (zero_stage >= 1 || weights_on_host) && in_bytes(unit);
    placement.push_back({&group, whole, own, saved, zero_stage >= 1 ? own : whole, zero_stage >= 2 ? own : whole,
                         zero_stage >= (weights_on_host || bytes ? 1 : 3) ? own : whole, bytes, weights_on_host});
  }
  return placement;
}

// True if state, gradients and weights keep the same shards, so that those of consecutive units are contiguous in each.
inline bool updates_contiguous(const Placement& placement) {
  for (const UnitPlacement& p : placement)
    if (p.state != p.gradients || p.state != p.weights) return false;
  return true;
}

// The arithmetic of a flat buffer that holds shards of units, one after the other.
class FlatShards {
 public:
  struct Entry {
    int unit;
    Shard shard;
    size_t at;  // in the buffer
  };
  FlatShards() = default;
  // One shard of each unit: a member of UnitPlacement.
  FlatShards(const Placement& placement, Shard UnitPlacement::*shard) {
    for (size_t unit = 0; unit < placement.size(); ++unit) add(int(unit), placement[unit].*shard);
  }
  // Appends a shard. Units are added in ascending order, and so are the shards of a unit.
  void add(int unit, const Shard& shard) {
    first_entry_.resize(size_t(unit) + 1, entries_.size());
    entries_.push_back({unit, shard, size_});
    size_ += shard.count;
  }
  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return size_; }
  // Returns where elements `shard` of the unit begin in the buffer. Throws unless one entry contains them.
  size_t at(int unit, const Shard& shard) const {
    size_t i = size_t(unit) < first_entry_.size() ? first_entry_[size_t(unit)] : entries_.size();
    for (; i < entries_.size() && entries_[i].unit == unit; ++i)
      if (entries_[i].shard.contains(shard)) return entries_[i].at + (shard.first - entries_[i].shard.first);
    fail("elements %zu to %zu of unit %d are not kept here", shard.first, shard.end(), unit);
  }
  Tensor view(const Tensor& buffer, int unit, const Shard& shard) const {
    return buffer.elements(int64_t(at(unit, shard)), int64_t(shard.count));
  }
  // The same for elements that begin in the unit and may go on in the shards after it.
  Tensor view_from(const Tensor& buffer, int unit, const Shard& elements) const {
    return buffer.elements(int64_t(at(unit, {elements.first, 0})), int64_t(elements.count));
  }

 private:
  std::vector<Entry> entries_;
  std::vector<size_t> first_entry_;  // of each unit
  size_t size_ = 0;
};

// Returns the parts of one shard of each unit (a member of UnitPlacement) whose tensors satisfy `has`. The padding
// after a tensor belongs to it. If all tensors satisfy `has`, these are the shards themselves.
inline FlatShards shards_with(const ParameterLayout& layout, const Placement& placement, Shard UnitPlacement::*member,
                              const std::function<bool(const ParameterInfo& tensor)>& has) {
  FlatShards shards;
  for (int unit = 0; unit < int(placement.size()); ++unit) {
    const Shard& shard = placement[size_t(unit)].*member;
    const std::span<const ParameterInfo> tensors = layout.tensors_of(unit);
    for (size_t i = 0, next; i < tensors.size(); i = next) {
      next = i + 1;
      while (next < tensors.size() && has(tensors[next]) == has(tensors[i])) ++next;
      const size_t first = std::max(shard.first, tensors[i].offset);
      const size_t end =
          std::min(shard.end(), next < tensors.size() ? tensors[next].offset : layout.units[size_t(unit)].size);
      if (has(tensors[i]) && first < end) shards.add(unit, {first, end - first});
    }
  }
  return shards;
}
