// The buffers that the layers of a pass use one after the other: one row of a table for each. The memory plan follows
// from the table, and a pass finds its buffers by their names.
#pragma once

#include <span>
#include <vector>

#include "llmc/config/activations.h"

// The properties of a run on which the size of a buffer depends.
struct ScratchSizes : SavedSizes {
  int context_heads;  // key/value heads that context parallelism gathers together; 0: this rank has whole sequences
};

// Who uses a buffer besides the blocks of this rank.
enum class ScratchUse {
  exchanged,  // tensor-parallel ranks, which gather it or scatter it
  head,       // the head, with the same contents or while it needs its logits
  blocks,     // nobody: it may lie where the head's logits do, which live while no block runs
};

struct ScratchRow {
  const char* name;                             // in the memory plan
  Tensor (*tensor)(const ScratchSizes& sizes);  // its type and shape; absent if the model does not use it
  ScratchUse use;
  bool backward_only;

  // Returns its type and shape in this run; absent if the run does not use it.
  Tensor of(const ScratchSizes& sizes) const { return backward_only && !sizes.backward ? Tensor() : tensor(sizes); }
};

// The rows are in the order of the memory plan. Under tensor parallelism, NH, NKV and FF count what this rank holds.
std::span<const ScratchRow> scratch_rows();

// Returns the bytes of the buffers that blocks alone use.
size_t block_scratch_bytes(const ScratchSizes& sizes);

// The buffers by name, for the largest micro-batch.
class ScratchTensors {
 public:
  // `tensors` are in the order of the rows.
  explicit ScratchTensors(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}
  // Returns the tensor, which is absent if this run does not use it. Throws if the table has no such row.
  Tensor operator[](const char* name) const;

 private:
  std::vector<Tensor> tensors_;
};

// The buffers of blocks in a pass of N tokens and R rows. Forward uses the first four, `rotated`
// only in a training.
struct BlockScratch {
  BlockScratch(const ScratchTensors& all, int N, int R);

  Tensor projected;    // (R, C) output of Wo; with norms after attention and the MLP: gradient of the outputs of Wo and
                       // Wdown
  Tensor dqkv;         // (N, QKV); in forward with a `past`: the new tokens' q, k and v before they are copied
  Tensor rotated;      // (N, QKV) q, k and v after RoPE, where backward needs them as they were before a norm
  Tensor qk_sums;      // (N, 2) of q and k; only for a norm over all heads
  Tensor dnorm;        // (R, C)
  Tensor dattention;   // (N, NH HD)
  Tensor dswiglu;      // (N, FF)
  Tensor dgate_up;     // (N, 2 FF); absent where quantization computes it and nobody stores it
  Tensor rowsum_dO_O;  // (rowsum_dO_O_size(N))
  Tensor norm_partials;    // (rmsnorm_backward_scratch(R, C))
  Tensor vector_partials;  // (qk_norm_rope_scratch(N, QKV)); only for biases, or norms of q and k
};
