// How the ranks share the state of a training (ZeRO: Rajbhandari et al. 2020; PyTorch's FSDP): those that shard
// together each keep a part of every unit, and each such group is a replica of the others.
//
//   stage   master weights, moments   gradients   weights
//     0           whole                 whole      whole
//     1           a part                whole      whole
//     2           a part                a part     whole
//     3           a part                a part     a part, gathered for each pass
#pragma once

#include "llmc/comm/communicator.h"
#include "llmc/model/tensors.h"

// Elements first .. first+count-1 of a unit.
struct UnitShare {
  size_t first, count;
};

struct Sharding {
  int stage = 0;  // 0 where one rank shards alone
  // The ranks that share one copy of the state, once for weights on their way to them and once for gradients on their
  // way from them, which travel at the same time; and those that keep the same part.
  Communicator &gather, &reduce, &replicate;
  // The ranks of a tensor-parallel group, once beside each of those that travel at the same time, and those of it that
  // have the same key and value heads; null: there are none.
  Communicator *tensor = nullptr, *heads = nullptr, *tensor_gather = nullptr;

  // numbers (count) = the largest of all ranks that share the model's weights out, beside weights on their way.
  void agree(Stream& stream, float* numbers, size_t count) const {
    if (stage > 0) gather.all_reduce_max(stream, numbers, count);
    if (tensor_gather) tensor_gather->all_reduce_max(stream, numbers, count);
  }

  // Those that have the same elements of a tensor, whose gradients are sums over them; null: no others.
  Communicator* copies(const Tensor& tensor) const {
    return tensor.copies == 1 ? nullptr : tensor.row->shard == ShardRule::replicated ? this->tensor : heads;
  }

  int degree() const { return gather.size(); }
  int rank() const { return gather.rank(); }

  // What of a unit this rank updates: elements first() .. first()+count()-1 of it.
  size_t first(const TensorLayout& layout, int unit) const { return stage ? part(layout, unit) : 0; }
  size_t count(const TensorLayout& layout, int unit) const {
    return stage ? layout.part_size(unit) : layout.units[size_t(unit)].size;
  }
  // Where that lies in a buffer that holds nothing else of the units, which is so large.
  size_t at(const TensorLayout& layout, int unit) const {
    return layout.units[size_t(unit)].offset / (stage ? size_t(layout.parts) : 1);
  }
  size_t total(const TensorLayout& layout) const { return layout.size / (stage ? size_t(layout.parts) : 1); }
  // Where this rank's part of a unit begins in the whole unit, in any stage.
  size_t part(const TensorLayout& layout, int unit) const { return size_t(rank()) * layout.part_size(unit); }
  // What of a unit this rank saves, in any stage: those that keep the same part share it out.
  UnitShare saved(const TensorLayout& layout, int unit) const {
    const size_t size = layout.part_size(unit), ranks = size_t(replicate.size()), r = size_t(replicate.rank());
    return {part(layout, unit) + size * r / ranks, size * (r + 1) / ranks - size * r / ranks};
  }
};
