// A block's attention where context parallelism shares sequences out (context_parallel.h): one key and value head after
// the other, and of each one call for each of this rank's two chunks of queries, which sees the keys of the whole
// sequence up to its own. So no softmax is joined from parts: each query's sums are those of one rank.
#pragma once

#include "llmc/model/block.h"

// activations.attention =, activations.lse = (in an order of its own), from activations.qkv. The largest |attention|
// goes to `amax` unless that is null.
template <class T>
void attention_in_chunks(const BlockContext& context, const BlockActivations<T>& activations, float* amax);

// Before attention_in_chunks_backward(): the first heads' keys and values set out.
template <class T>
void gather_keys_values(const BlockContext& context, const T* qkv);
// scratch.dqkv =, from scratch.dattention and what forward left.
template <class T>
void attention_in_chunks_backward(const BlockContext& context, const BlockActivations<T>& activations,
                                  const BlockScratch<T>& scratch);
