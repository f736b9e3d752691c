// Softmax and cross-entropy in one, over the vocabulary; turns logits into their gradient in place.
//
//   losses[n]    = log(sum_v exp(logits[n,v])) - logits[n,labels[n]]                          nats, not scaled
//   dlogits[n,v] = (softmax(logits[n])[v] - (v == labels[n])) / state->label_count
//
// A label of -100 is ignored: loss 0, gradients 0. Labels are checked on the host where they are made; one outside
// [0, V) that comes here all the same makes the row's loss and gradients NaN.
// T is float or bf16; everything between logits and dlogits is fp32. Deterministic.
#pragma once

#include <cstddef>
#include <cstdint>

#include "llmc/device/device.h"
#include "llmc/device/number.h"
#include "llmc/kernels/step_state.h"

inline constexpr int kIgnoredLabel = -100;

// logits (N, ld): row n begins at logits + n * ld, its columns V .. ld-1 are padding: never read, and 0 afterwards, so
// that products over the padded width stay clean. losses (N) =, labels (N). state->label_count is that of the whole
// step, over all ranks and micro-batches.
template <class T>
void classifier_forward_backward(Stream& stream, T* logits, float* losses, const int* labels, const StepState* state,
                                 int N, int V, int ld);

// The losses alone, with the same bits; logits stay as they are.
template <class T>
void classifier_forward(Stream& stream, float* losses, const T* logits, const int* labels, int N, int V, int ld);

// ---- rows of which each rank of a tensor-parallel group has a part: the columns first .. first+V-1 of `whole`

struct VocabularyPart {
  int first, V, whole;
  int most = V;  // columns of each rank but the last
};
// Of the columns that a rank has: the largest logit, the sum of exp(logit - largest), and the label's logit, 0 where
// another rank has it.
struct SoftmaxPart {
  float max, sum, label;
};

// parts (N) = of this rank's logits (N, ld).
template <class T>
void classifier_part(Stream& stream, SoftmaxPart* parts, const T* logits, const int* labels, VocabularyPart part, int N,
                     int ld);
// With all ranks' parts (ranks, N), in their order: the gradients of this rank's columns, in place, as above; and the
// losses (N), the same bits on each rank. (Sums of parts add in the order of the ranks.)
template <class T>
void classifier_join(Stream& stream, T* logits, const SoftmaxPart* parts, int ranks, const int* labels,
                     const StepState* state, VocabularyPart part, int N, int ld);
void classifier_losses(Stream& stream, float* losses, const SoftmaxPart* parts, int ranks, const int* labels, int whole,
                       int N);

// state->loss_sum += the sum of losses (N), in fp64 and in an order that only N decides.
void sum_losses(Stream& stream, StepState* state, const float* losses, int N);
