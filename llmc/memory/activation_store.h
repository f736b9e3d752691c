// The tensors that forward saves for backward, block by block, stored as a policy says (activation_policy.h): in memory
// of the block's own, in a workspace into which one block after the other computes them, or in a slot. From a slot they
// are copied to pinned memory of the host, and back in time.
//
//   forward:   begin_forward(layer)   compute waits until the slot's former tensors have been copied to the host
//              end_forward(layer)     starts the copy of this block's tensors to the host, on a stream of its own
//   backward:  begin_backward(layer)  compute waits until the block's tensors are back
//              end_backward(layer)    the slot is free: starts the copy of an earlier block's, on a stream of its own
//
// Only streams wait, never the host. Without a backward pass two sets of buffers are used in turn, since a block reads
// what the one before it left. Only qkv is then each block's own: its keys and values are the cache from which a
// sequence is continued.
#pragma once

#include <optional>
#include <vector>

#include "llmc/memory/activation_policy.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/slots.h"

class ActivationStore {
 public:
  // `policy`: none without a backward pass. `host`: needed to offload.
  ActivationStore(MemoryPlan& plan, const SavedSizes& sizes, const std::optional<ActivationPolicy>& policy,
                  Device& device, Stream& compute, HostStreams* host);

  SavedTensors get(int layer) const;
  // True if the FP8 input of a product is saved when the block is recomputed, and not in forward.
  bool recomputes_input(const LayerProjection& p) const;
  // Returns the level for Block::recompute() before the block's backward. The last block needs none, since what it
  // computed is still there.
  Recompute recompute(int layer) const;
  // True if each block's keys and values last until the next pass.
  bool keeps_keys() const;

  // `training`: a backward pass follows; without one nothing is offloaded.
  void begin_forward(int layer, bool training);
  void end_forward(int layer, bool training);
  void begin_backward(int layer);
  void end_backward(int layer);

 private:
  // One for each row of the table. `host` is absent unless this block sends the tensor there.
  struct Saved {
    std::vector<PlannedTensor> device, host;
  };
  void plan_tensors(MemoryPlan& plan);
  void send(int layer);
  void fetch(int layer);
  Storage storage(const SavedRow& row, int layer) const;
  // Returns the index of the block, slot or workspace that holds the tensor, depending on its storage.
  int index_of(const SavedRow& row, int layer) const;
  int layers() const { return sizes_.config.L; }
  bool offloads() const { return policy_ && policy_->offloads(sizes_.config); }
  bool leaves(int layer) const { return offloads() && layer + policy_->horizon < layers(); }
  int slot_of(int layer) const { return layer % policy_->horizon; }

  const SavedSizes sizes_;
  const std::optional<ActivationPolicy> policy_;
  std::vector<Saved> blocks_;
  Stream& compute_;
  HostStreams* host_;
  Slots slots_;  // events of the slots, whose memory `blocks_` has
};
