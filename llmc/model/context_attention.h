// A block's attention under context parallelism (context_parallel.h). Key and value heads are processed one after the
// other. For each of them attention is called twice, once for each of this rank's two chunks of queries. A call sees
// the keys of the whole sequence up to the chunk's last position, so no softmax is joined from parts: one rank computes
// all sums of a query.
#pragma once

#include "llmc/model/block.h"

// activations.attention =, activations.lse = (in an order of its own), from activations.qkv. The largest |attention|
// goes to `amax` unless that is null.
template <class T>
void attention_in_chunks(const BlockContext& context, const BlockActivations<T>& activations, float* amax);

// Starts the all-gather of the first heads' keys and values. Call it before attention_in_chunks_backward().
template <class T>
void gather_keys_values(const BlockContext& context, const T* qkv);
// scratch.dqkv =, from scratch.dattention and the activations of forward.
template <class T>
void attention_in_chunks_backward(const BlockContext& context, const BlockActivations<T>& activations,
                                  const BlockScratch<T>& scratch);
