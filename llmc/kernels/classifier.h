// Fused softmax and cross-entropy over the vocabulary. Backward overwrites the logits with their gradient.
//
//   losses[n]    = log(sum_v exp(logits[n,v])) - logits[n,labels[n]]                          nats, not scaled
//   dlogits[n,v] = (softmax(logits[n])[v] - (v == labels[n])) / state->label_count
//
// A label of -100 is ignored: its loss and gradients are 0. The host checks labels where they are made. If a label
// outside of [0, V) reaches a kernel all the same, the row's loss and gradients become NaN. T is float or bf16;
// everything between logits and dlogits is fp32. Deterministic.
#pragma once

#include <cstddef>
#include <cstdint>

#include "llmc/device/device.h"
#include "llmc/device/number.h"
#include "llmc/kernels/step_state.h"

inline constexpr int kIgnoredLabel = -100;

// logits (N, ld): row n begins at logits + n * ld. Columns V .. ld-1 are padding: they are never read, and become 0 so
// that they do not affect products over the padded width. Reads labels (N), writes losses (N). state->label_count is
// that of the whole step, over all ranks and micro-batches. Throws unless N, V > 0 and ld >= V, and unless logits are
// 16-byte aligned if ld is a multiple of 8.
template <class T>
void classifier_forward_backward(Stream& stream, T* logits, float* losses, const int* labels, const StepState* state,
                                 int N, int V, int ld);

// Writes the losses alone, with the same bits; logits stay as they are.
template <class T>
void classifier_forward(Stream& stream, float* losses, const T* logits, const int* labels, int N, int V, int ld);

// ---- rows of which each rank of a tensor-parallel group has a part: the columns first .. first+V-1 of `whole`

// The columns that a rank holds: first .. first+V-1 of `whole`.
struct VocabularyPart {
  int first, V, whole;
  int most = V;  // columns of every rank except the last
};
// One rank's result for a row: the largest logit, the sum of exp(logit - largest), and the label's logit, which is 0 if
// another rank holds its column.
struct SoftmaxPart {
  float max, sum, label;
};

// Writes parts (N) from this rank's logits (N, ld). Throws unless `part` lies within its `whole` columns.
template <class T>
void classifier_part(Stream& stream, SoftmaxPart* parts, const T* logits, const int* labels, VocabularyPart part, int N,
                     int ld);
// Both take the parts of all ranks (ranks, N), in the order of the ranks, and add their sums in that order.
// classifier_join overwrites this rank's logits with their gradients, as above. classifier_losses writes losses (N),
// with the same bits on each rank.
template <class T>
void classifier_join(Stream& stream, T* logits, const SoftmaxPart* parts, int ranks, const int* labels,
                     const StepState* state, VocabularyPart part, int N, int ld);
void classifier_losses(Stream& stream, float* losses, const SoftmaxPart* parts, int ranks, const int* labels, int whole,
                       int N);

// Adds the sum of losses (N) to state->loss_sum, in fp64 and in an order that depends on N alone.
void sum_losses(Stream& stream, StepState* state, const float* losses, int N);
