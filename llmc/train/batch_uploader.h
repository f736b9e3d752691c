// Copies the tokens of a step to the device, all micro-batches at once, with what follows from them: the arrays of a
// MicroBatch. The host fills pinned buffers in turn, so that it can prepare a step while the device works on the
// previous one.
#pragma once

#include <cstdint>
#include <vector>

#include "llmc/memory/plan.h"
#include "llmc/model/pass.h"

class BatchUploader {
 public:
  // Plans buffers for up to `micro_batches` micro-batches. `context` is this rank's part of each sequence; it has up to
  // `tokens` tokens of a micro-batch.
  // In some layers a token sees at most `window` tokens, itself included; 0: no layer has a window. The sequences are
  // from `sources` sources; the source of each token is sent if there are several.
  BatchUploader(MemoryPlan& plan, Device& device, int micro_batches, size_t tokens, int window, int sources,
                ContextPart context = {});

  // Sends this rank's tokens of `micro_batches` micro-batches, which lie one after the other. Each has B whole
  // sequences of T tokens, and T is a multiple of context.multiple(). `labels` may be null if no loss is wanted. Null
  // `positions` mean past .. past+T-1 in each row. Otherwise rows are packed with documents: a document begins at each
  // position 0 and at the start of each row. `row_sources` (micro_batches, B) are the sources of the sequences; null:
  // all are from source 0. Never waits: when it is called, all earlier sends but the last must have completed
  // (TrainingLoop::run() waits for step n-1 before it enqueues step n+1). Throws on a token or label outside [0, V),
  // except the label -100. Throws on a position outside [0, T), and on one that is neither 0 nor its predecessor in the
  // row plus 1.
  void send(Stream& stream, int micro_batches, const int32_t* inputs, const int32_t* labels, const int32_t* positions,
            int B, int T, int V, int past = 0, const int32_t* row_sources = nullptr);

  // Returns a micro-batch of the last send().
  MicroBatch micro_batch(int index = 0) const;

 private:
  static constexpr int kSlots = 2;
  enum Array { kInputs, kLabels, kPositions, kOrder, kDocumentStart, kWindowStart };  // of a micro-batch
  int source_array() const { return window_ ? kWindowStart + 1 : kWindowStart; }      // the last one
  int arrays() const { return source_array() + (several_sources_ ? 1 : 0); }
  void fill(int* batch, const int32_t* inputs, const int32_t* labels, const int32_t* positions, int B, int T, int V,
            int past);
  void fill_sources(int* batch, const int32_t* row_sources, int B, int T);

  Device& device_;
  const int micro_batches_;
  const size_t tokens_;
  const int window_;
  const bool several_sources_;
  const ContextPart context_;
  PlannedTensor pinned_;     // (kSlots, micro_batches, arrays, tokens)
  PlannedTensor on_device_;  // (micro_batches, arrays, tokens)
  int slot_ = 0;
  int B_ = 0, T_ = 0;  // of the last send()
  bool packed_ = false;
  std::vector<int32_t> sort_scratch_;
  std::vector<int> document_start_;  // of the whole sequences, (B, T)
};
