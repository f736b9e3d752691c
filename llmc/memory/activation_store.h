// What forward leaves for backward, block by block, as a policy has it (activation_policy.h): in memory of the block's
// own, in a workspace that one block after the other computes it into, or in a slot from which it leaves for pinned
// memory of the host and into which it comes back in time.
//
//   forward:   begin_forward(layer)   compute waits until what was in the slot has left
//              end_forward(layer)     what travels leaves, on a stream of its own
//   backward:  begin_backward(layer)  compute waits until it is back
//              end_backward(layer)    the slot is free: an earlier block's come back, on a stream of their own
//
// Only streams wait, never the host. Without a backward pass two sets take turns, since a block reads what the one
// before it left; only qkv is each block's own then: the keys and values there are the cache from which a sequence is
// continued.
#pragma once

#include <optional>
#include <vector>

#include "llmc/memory/activation_policy.h"
#include "llmc/memory/host_streams.h"
#include "llmc/memory/plan.h"

template <class T>
class ActivationStore {
 public:
  // For micro-batches of up to `tokens` tokens. `policy`: none without a backward pass. `host`: needed if it offloads.
  ActivationStore(MemoryPlan& plan, const LlamaConfig& config, const Fp8Settings& fp8,
                  const std::optional<ActivationPolicy>& policy, SavedTokens tokens, Device& device, HostStreams* host);
  void bind(const Arena& arena, Stream& compute);

  const BlockActivations<T>& get(int layer) const { return blocks_[size_t(layer)].activations; }
  // The input of a block's FP8 product by columns; empty where nothing of the kind is kept, or, in forward, is computed
  // again later.
  OperandMemory quantized_input(int layer, Product product, bool backward) const;
  // What block_recompute() is to do before the block's backward. What the last block computed is still there.
  Recompute recompute(int layer) const;
  // Each block's keys and values last until the next pass.
  bool keeps_keys() const;

  // `training`: a backward pass follows; else nothing travels.
  void begin_forward(int layer, bool training);
  void end_forward(int layer, bool training);
  void begin_backward(int layer);
  void end_backward(int layer);

 private:
  struct Place {
    Planned<std::byte> planned;  // as bytes, whatever its type
    std::byte* data = nullptr;
    size_t bytes = 0;  // of the block's
  };
  struct Block {
    Place device[kSaved], host[kSaved];
    BlockActivations<T> activations;
  };
  void plan_places(MemoryPlan& plan, SavedTokens tokens);
  void send(int layer);
  void fetch(int layer);
  Fate fate(Saved saved, int layer) const;
  // Of what has the fate: the block, slot or workspace that it is in.
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
  std::vector<Event> left_, back_;  // a slot
};
