// Fused softmax and cross-entropy over the vocabulary. Backward overwrites the logits with their gradient.
//
//   losses[n]    = log(sum_v exp(logits[n,v])) - logits[n,labels[n]]                          nats, not scaled
//   dlogits[n,v] = (softmax(logits[n])[v] - (v == labels[n])) / state->label_count
//
// A z-loss keeps the logits from drifting (Chowdhery et al. 2022, arXiv 2204.02311, section 5):
//
//   z_losses[n]   = coefficient * logsumexp(logits[n])^2                              nats, not scaled
//   dlogits[n,v] += 2 * coefficient * logsumexp(logits[n]) * softmax(logits[n])[v] / state->label_count
//
// So |dlogits[n,v]| <= (1 + 2 * coefficient * |logsumexp(logits[n])|) / state->label_count, before it is rounded to the
// type of the logits: 1.02 / state->label_count with a coefficient of 1e-4 and a logsumexp of 100.
//
// A label of -100 is ignored: its losses and gradients are 0. The host checks labels where they are made. If a label
// outside of [0, V) reaches a kernel all the same, the row's loss and gradients become NaN. Logits are fp32 or bf16;
// everything between logits and dlogits is fp32. Deterministic.
#pragma once

#include <cstddef>
#include <cstdint>

#include "llmc/device/device.h"
#include "llmc/device/tensor.h"
#include "llmc/kernels/step_state.h"

inline constexpr int kIgnoredLabel = -100;

struct ZLoss {
  float coefficient = 0;  // 0: there is none
  Tensor losses = {};     // (N) fp32, written; absent if there is none
};

// Rows of logits (N, ld) are contiguous. Columns V .. ld-1 are padding: they are never read, and become 0 so that they
// do not affect products over the padded width. Reads labels (N) int32, writes losses (N) fp32. state->label_count is
// that of the whole step, over all ranks and micro-batches. Throws unless N, V > 0 and ld >= V, unless types and shapes
// are these, and unless logits are 16-byte aligned if ld is a multiple of 8.
void classifier_forward_backward(Stream& stream, const Tensor& logits, const Tensor& losses, const Tensor& labels,
                                 const StepState* state, int V, const ZLoss& z_loss = {});

// Writes the losses alone, with the same bits, without a z-loss; logits stay as they are.
void classifier_forward(Stream& stream, const Tensor& losses, const Tensor& logits, const Tensor& labels, int V);

// ---- rows of which each rank of a tensor-parallel group has a part

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
void classifier_part(Stream& stream, SoftmaxPart* parts, const Tensor& logits, const Tensor& labels,
                     VocabularyPart part);
// classifier_join and classifier_losses take the parts of all ranks (ranks, N), in the order of the ranks, and add
// their sums in that order. classifier_join overwrites this rank's logits with their gradients, as above.
// classifier_losses writes losses (N), and the z-losses if there is a z-loss, with the same bits on each rank.
void classifier_join(Stream& stream, const Tensor& logits, const SoftmaxPart* parts, int ranks, const Tensor& labels,
                     const StepState* state, VocabularyPart part, float z_loss_coefficient = 0);
void classifier_losses(Stream& stream, const Tensor& losses, const SoftmaxPart* parts, int ranks, const Tensor& labels,
                       int whole, const ZLoss& z_loss = {});

// Adds the sum of losses (N) fp32 to *sum, in fp64 and in an order that depends on N alone.
void sum_losses(Stream& stream, double* sum, const Tensor& losses);
// sums (S, 2) fp64 += for each of S sources, the sum of the losses of its labels in nats, and the number of these
// labels. Row n is from source sources[n], in [0, S); losses (N) fp32, labels (N) and sources (N) int32. A label that
// is ignored does not count. In an order that depends on N alone. Throws unless types and shapes are these.
void sum_losses_by_source(Stream& stream, const Tensor& sums, const Tensor& losses, const Tensor& labels,
                          const Tensor& sources);
