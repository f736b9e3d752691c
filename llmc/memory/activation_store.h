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
#include "llmc/memory/host_streams.h"
#include "llmc/memory/plan.h"

template <class T>
class ActivationStore {
 public:
  // For micro-batches of up to `tokens` tokens. `policy`: none without a backward pass. `host`: needed to offload.
  ActivationStore(MemoryPlan& plan, const LlamaConfig& config, const Fp8Settings& fp8,
                  const std::optional<ActivationPolicy>& policy, SavedTokens tokens, Device& device, HostStreams* host);
  void bind(const Arena& arena, Stream& compute);

  const BlockActivations<T>& get(int layer) const { return blocks_[size_t(layer)].activations; }
  // Returns the memory for the saved input of a block's FP8 product. It is empty if none is saved, and in forward also
  // if the input is recomputed later.
  OperandMemory saved_fp8_input(int layer, Product product, bool backward) const;
  // Returns the level for block_recompute() before the block's backward. The last block needs none, since what it
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
  struct Place {
    Planned<std::byte> planned;  // as bytes, whatever its type is
    std::byte* data = nullptr;
    size_t bytes = 0;  // that this block uses
  };
  struct Block {
    Place device[kSaved], host[kSaved];
    BlockActivations<T> activations;
  };
  void plan_places(MemoryPlan& plan, SavedTokens tokens);
  void send(int layer);
  void fetch(int layer);
  Storage storage(Saved saved, int layer) const;
  // Returns the index of the block, slot or workspace that holds the tensor, depending on its storage.
  int index_of(Saved saved, int layer) const;
  bool travels() const { return policy_ && policy_->offloads(config_); }
  bool leaves(int layer) const { return travels() && layer + policy_->horizon < config_.L; }
  size_t slot_of(int layer) const { return size_t(layer % policy_->horizon); }

  const LlamaConfig& config_;
  const Fp8Settings& fp8_;
  const std::optional<ActivationPolicy> policy_;
  std::vector<Block> blocks_;
  Stream* compute_ = nullptr;
  HostStreams* host_;
  std::optional<Event> computed_, released_;
  std::vector<Event> left_, back_;  // one per slot
};
