// What becomes of the tensors that a block's forward leaves for its backward. Each is kept on the device, computed
// again, or sent to the host and back:
//
//   --recompute   computes again                          --activation-offload   sends to the host, of what is kept
//   norms         both norms' and SwiGLU's outputs        input                  the block's input
//   mlp           all of the MLP                          attention              and all up to attention's output
//   block         all but the block's input               all                    all
//
// What travels lies in one of `horizon` slots on the device, in which the blocks take turns: the last ones of forward,
// which backward needs first, stay in theirs. Amazon SageMaker's activation offloading is block, input.
#pragma once

#include <string>

#include "llmc/model/block.h"

enum class Offload { none, input, attention, all };

struct ActivationPolicy {
  Recompute recompute = Recompute::none;
  int recompute_every = 1;  // in the blocks 0, every, 2 every, …
  Offload offload = Offload::none;
  int horizon = 2;  // blocks whose travelling tensors are on the device at once
  // For checks: the device's memory is overwritten as soon as its copy has left.
  bool poison = false;

  bool recomputes(int layer) const { return recompute != Recompute::none && layer % recompute_every == 0; }
  bool offloads(const LlamaConfig& config) const { return offload != Offload::none && horizon < config.L; }
};

Recompute recompute_named(const std::string& name);
Offload offload_named(const std::string& name);

// In the order in which forward writes them; inputs of products are there in FP8 where those are in FP8, else in T.
enum class Saved {
  x,
  rstd1,
  norm1,
  qkv_input,
  qkv_input_factors,
  qkv,
  attention,
  lse,
  middle,
  rstd2,
  norm2,
  gate_up_input,
  gate_up_input_factors,
  gate_up,
  swiglu,
  down_input,
  down_input_factors
};
inline constexpr int kSaved = int(Saved::down_input_factors) + 1;
const char* name_of(Saved saved);

enum class Fate { kept, recomputed, travels };
Fate fate_of(Saved saved, int layer, const ActivationPolicy& policy, const LlamaConfig& config);

// Elements and bytes of one; no elements where the block does not leave it.
struct SavedSize {
  size_t count = 0, element_bytes = 1;
  size_t bytes() const { return count * element_bytes; }
};
// Of `tokens` tokens, of which this rank has so many rows between products (model/tensor_parallel.h).
struct SavedTokens {
  size_t tokens, rows;
  bool shared() const { return rows < tokens; }  // what such products take is gathered
};
// `backward`: else only what forward itself needs.
SavedSize size_of(Saved saved, int layer, const LlamaConfig& config, const Fp8Settings& fp8, size_t element_bytes,
                  SavedTokens tokens, bool backward);

// For people: what becomes of each tensor with each value of both options, a line for those that share their fate.
std::string activation_table();

// "kept: x, …; computed again: …; on the host: …, 2 blocks' on the device", a line for each kind of block. Of the last
// blocks less is true: nothing is computed again in the last one, and what travels stays on the device of `horizon`.
std::string describe_activations(const ActivationPolicy& policy, const LlamaConfig& config, const Fp8Settings& fp8,
                                 int tensor_degree);
