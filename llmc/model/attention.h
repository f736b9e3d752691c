// A block's attention: this rank's queries against the keys of whole sequences, wherever these are.
//
// Under context parallelism (context_parallel.h) a few key/value heads are gathered and processed at a time. For each
// such group the kernel is called twice, once for each of this rank's two chunks of queries. A call sees the keys of
// the whole sequence up to the chunk's last position, so no softmax is joined from parts: one rank computes all sums of
// a query.
#pragma once

#include "llmc/model/pass.h"

// The tensors that forward computes and backward reads.
struct AttentionTensors {
  Tensor qkv;  // (past + N, QKV) packed rows, after RoPE
  Tensor out;  // (N, NH HD)
  Tensor lse;  // B NH T elements; under context parallelism they have an order of their own
};

// Computes out and lse from qkv. `amax` receives the amax of out, unless it is null.
void attention_forward(const Pass& pass, int layer, const AttentionTensors& a, float* amax);

// Under context parallelism, starts the all-gather of the first heads' keys and values. Call it before
// attention_backward().
void attention_prefetch(const Pass& pass, int layer, const Tensor& qkv);

// dqkv (N, QKV) = the gradient of qkv, from dout (N, NH HD) and forward's tensors. `rowsum_dO_O` is scratch of
// rowsum_dO_O_size() elements.
void attention_backward(const Pass& pass, int layer, const Tensor& dqkv, const Tensor& dout, const AttentionTensors& a,
                        const Tensor& rowsum_dO_O);
// For a pass of N tokens. `heads`: choose_context_heads() if ranks share sequences, else 0. With it one call of the
// kernel handles so many key/value heads and one of two chunks, so it needs less memory.
inline int64_t rowsum_dO_O_size(const ModelConfig& config, int64_t N, int heads) {
  return heads ? N * config.NH / config.NKV * heads / 2 : N * config.NH;
}
// Returns the number of key/value heads of a group, where `ranks` share each of B sequences in chunks of `chunk`
// tokens: the smallest divisor of NKV that keeps an H100 busy. Forward then has at least 128 blocks. The gradient of
// keys and values has fewer blocks for the first chunk of a sequence, which sees the fewest keys. That chunk is 1 / (4
// ranks) of the first rank's work, and too few blocks may make that work at most 4% longer. More heads would take
// memory, and the first gather of a layer, which nothing hides in forward, would take longer. The number does not
// depend on the device, so that a plan is the same everywhere.
int choose_context_heads(const ModelConfig& config, int B, int chunk, int ranks);
