// The storage of the tensors that a block's forward saves for its backward. Each is kept on the device, recomputed, or
// sent to the host and back:
//
//   --recompute   recomputes                              --activation-offload   sends to the host, if not recomputed
//   norms         the outputs of both norms and SwiGLU    input                  the block's input
//   mlp           all of the MLP                          attention              also all up to attention's output
//   block         all but the block's input               all                    all
//
// Block i uses slot i mod `horizon` for its offloaded tensors. Backward starts with the last `horizon` blocks, so their
// tensors never leave the device. Amazon SageMaker's activation offloading is
// --recompute block with --activation-offload input.
#pragma once

#include <string>

#include "llmc/config/activations.h"

struct ActivationPolicy {
  Recompute recompute = Recompute::none;
  int recompute_every = 1;  // in the blocks 0, every, 2 every, …
  Offload offload = Offload::none;
  int horizon = 2;  // blocks whose offloaded tensors are on the device at once
  // For checks: the memory on the device is overwritten as soon as its copy has been made.
  bool poison = false;

  bool recomputes(int layer) const { return recompute != Recompute::none && layer % recompute_every == 0; }
  bool offloads(const ModelConfig& config) const { return offload != Offload::none && horizon < config.L; }
};

Recompute recompute_named(const std::string& name);
Offload offload_named(const std::string& name);

enum class Storage { kept, recomputed, offloaded };
Storage storage_of(const SavedRow& row, int layer, const ActivationPolicy& policy, const ModelConfig& config);

// Returns a table for people: the storage of each tensor for each value of both options, one line for tensors with the
// same storage.
std::string activation_table();

// Returns "kept: x, …; computed again: …; on the host: …, 2 blocks' on the device", one line for each kind of block.
// Two exceptions are not described: the last block recomputes nothing, and the last `horizon` blocks offload nothing.
std::string describe_activations(const ActivationPolicy& policy, const ModelConfig& config, const Fp8Settings& fp8,
                                 int tensor_degree);
