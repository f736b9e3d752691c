// How the ranks share the state of a training (ZeRO: Rajbhandari et al. 2020; PyTorch's FSDP). The ranks that shard
// together each keep a part of every unit. Each such group is a replica of the others.
//
//   stage   state: master weights, moments   gradients   weights
//     0                  whole                 whole      whole
//     1                  a part                whole      whole
//     2                  a part                a part     whole
//     3                  a part                a part     a part, gathered for each pass
#pragma once

#include "llmc/comm/communicator.h"
#include "llmc/config/parameters.h"

// Elements first .. first+count-1 of a unit.
struct Shard {
  size_t first, count;
};

// A row of the table above. Nothing else compares the stage's number.
struct ZeroStage {
  int64_t number = 0;  // 0 to 3
  constexpr bool shards_state() const { return number >= 1; }
  constexpr bool shards_gradients() const { return number >= 2; }
  constexpr bool shards_weights() const { return number >= 3; }
};

struct Sharding {
  ZeroStage stage;  // 0 if the group that shards has one rank
  // `gather` and `reduce` span the ranks over which the state is sharded. `gather` is for the all-gathers of weights in
  // a step, `reduce` for all else, so that weights and gradients can travel at the same time. `replicate` spans the
  // ranks that keep the same part.
  Communicator &gather, &reduce, &replicate;
  // The ranks of a tensor-parallel group: `tp_reduce` is used beside `reduce`, `tp_gather` beside `gather`.
  // `kv_replicas` spans those of the group that have the same key and value heads. Null: there is no such group.
  Communicator *tp_reduce = nullptr, *kv_replicas = nullptr, *tp_gather = nullptr;

  // numbers = the maximum over all ranks that share the model's weights. It travels beside the weights.
  void all_reduce_max(Stream& stream, const Tensor& numbers) const {
    if (stage.shards_state()) gather.all_reduce_max(stream, numbers);
    if (tp_gather) tp_gather->all_reduce_max(stream, numbers);
  }

  // Returns the ranks that have the same elements of a tensor, over which its gradient must be summed; null: there are
  // no others.
  Communicator* copies(const ParameterInfo& tensor) const {
    return tensor.copies == 1 ? nullptr : tensor.row->shard == ShardRule::replicated ? tp_reduce : kv_replicas;
  }

  int degree() const { return gather.size(); }
  int rank() const { return gather.rank(); }

  // This rank updates elements first() .. first()+count()-1 of a unit.
  size_t first(const ParameterLayout& layout, int unit) const {
    return stage.shards_state() ? shard_begin(layout, unit) : 0;
  }
  size_t count(const ParameterLayout& layout, int unit) const {
    return stage.shards_state() ? layout.part_size(unit) : layout.units[size_t(unit)].size;
  }
  // offset() is where these lie in a buffer that holds only them, for all units; size() is the size of that buffer.
  size_t offset(const ParameterLayout& layout, int unit) const {
    return layout.units[size_t(unit)].offset / shares(layout);
  }
  size_t size(const ParameterLayout& layout) const { return layout.size / shares(layout); }
  // True if the elements of all units that this rank updates lie one unit behind the other, not only in the state but
  // among the gradients and the weights too: everything there is whole, or everything is this rank's part.
  bool units_contiguous() const { return !stage.shards_state() || stage.shards_weights(); }
  // Returns where this rank's part of a unit begins in the whole unit, in any stage.
  size_t shard_begin(const ParameterLayout& layout, int unit) const { return size_t(rank()) * layout.part_size(unit); }
  // Returns the elements of a unit that this rank saves, in any stage. The ranks that keep the same part each save a
  // share of it.
  Shard saved(const ParameterLayout& layout, int unit) const {
    const size_t size = layout.part_size(unit), ranks = size_t(replicate.size()), r = size_t(replicate.rank());
    return {shard_begin(layout, unit) + size * r / ranks, size * (r + 1) / ranks - size * r / ranks};
  }

 private:
  // Returns the number of parts into which the state of a unit is cut.
  size_t shares(const ParameterLayout& layout) const { return stage.shards_state() ? size_t(layout.parts) : 1; }
};
