// Tokens on their way to the device, all micro-batches of a step at once: pinned buffers that the host fills in turn,
// so that it can prepare a step while the device works on the one before.
#pragma once

#include <cstdint>
#include <vector>

#include "llmc/device/device.h"
#include "llmc/memory/plan.h"
#include "llmc/model/context_part.h"

class BatchFeed {
 public:
  // What the device sees of this rank's N tokens of a micro-batch, in the order of ContextPart::place().
  struct DeviceBatch {
    const int* inputs;
    const int* labels;
    const int* positions;
    const int* order;           // 0 .. N-1 sorted by token
    const int* document_start;  // where in its sequence each token's document begins; null where rows are not packed
  };

  // For up to `micro_batches`, of which this rank has `part`, which is of up to `tokens` tokens.
  BatchFeed(MemoryPlan& plan, Device& device, int micro_batches, size_t tokens, ContextPart part = {});
  void bind(const Arena& arena);

  // Micro-batches of B whole sequences of T tokens, one behind the other, of which this rank's tokens are sent: T is a
  // multiple of part.multiple(). `labels` may be null where no loss is asked for.
  // `positions` are null for first .. first+T-1 in each row; else rows are packed with documents, of which one begins
  // where the position is 0 and in each row's beginning. Never waits: the caller has waited for all that was sent but
  // the last. Throws on a token or label outside of [0, V), but -100, and on a position that neither follows the one
  // before nor is 0, or is not below T.
  void send(Stream& stream, int micro_batches, const int32_t* inputs, const int32_t* labels, const int32_t* positions,
            int B, int T, int V, int first = 0);

  // Of those that were sent last.
  DeviceBatch device_batch(int micro_batch = 0) const;
  bool packed() const { return packed_; }

 private:
  static constexpr int kSlots = 2, kParts = 5;
  void fill(int* part, const int32_t* inputs, const int32_t* labels, const int32_t* positions, int B, int T, int V,
            int first);

  Device& device_;
  const int micro_batches_;
  const size_t tokens_;
  const ContextPart part_;
  Planned<int> planned_pinned_, planned_device_;
  int* pinned_ = nullptr;     // (kSlots, micro_batches, kParts, tokens)
  int* on_device_ = nullptr;  // (micro_batches, kParts, tokens)
  int slot_ = 0;
  bool packed_ = false;
  std::vector<int32_t> sort_scratch_;
  std::vector<int> document_start_;  // of whole sequences
};
