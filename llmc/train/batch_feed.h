// Tokens on their way to the device: pinned buffers that the host fills in turn, so that it can prepare a micro-batch
// while the device works on the one before.
#pragma once

#include <cstdint>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/device/device.h"
#include "llmc/memory/plan.h"

class BatchFeed {
 public:
  // What the device sees of a micro-batch, row b, token t at b * T + t.
  struct DeviceBatch {
    const int* inputs;
    const int* labels;
    const int* positions;
    const int* order;           // 0 .. N-1 sorted by token
    const int* document_start;  // of each token its document's first in the row; null where rows are not packed
  };

  // For up to `tokens` tokens in a micro-batch. The communicator is that of the stream's collectives.
  BatchFeed(MemoryPlan& plan, Device& device, Communicator& communicator, size_t tokens);
  void bind(const Arena& arena);

  // B sequences of T tokens; `labels` may be null where no loss is asked for. `positions` are null for first ..
  // first+T-1 in each row; else rows are packed with documents, of which one begins where the position is 0 and in each
  // row's beginning. Waits only if the host is kSlots micro-batches ahead of the device. Throws on a token or label
  // outside of [0, V), but -100, and on a position that neither follows the one before nor is 0, or is not below T.
  void send(Stream& stream, const int32_t* inputs, const int32_t* labels, const int32_t* positions, int B, int T, int V,
            int first = 0);

  DeviceBatch device_batch() const;

 private:
  static constexpr int kSlots = 2, kParts = 5;

  Device& device_;
  Communicator& communicator_;
  size_t tokens_;
  Planned<int> planned_pinned_, planned_device_;
  int* pinned_ = nullptr;     // (kSlots, kParts, tokens)
  int* on_device_ = nullptr;  // (kParts, tokens)
  std::vector<Event> sent_;   // a slot
  int slot_ = 0;
  bool packed_ = false;  // the last one sent
  std::vector<int32_t> sort_scratch_;
};
