// The gradients, fp32, unit by unit. With several data ranks a unit's gradients are summed over them as soon as its
// backward is done, on the communication stream, while the backward of the next unit computes.
#pragma once

#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/memory/plan.h"
#include "llmc/model/tensors.h"

class GradientStore {
 public:
  // `communicator` spans the data ranks.
  GradientStore(MemoryPlan& plan, const TensorLayout& layout, Device& device, Stream& compute, Stream& communication,
                Communicator& communicator);
  void bind(const Arena& arena);

  // Start of a step: clears what kernels only add to (norms, the embedding, padding); matrices are written first (`=`)
  // by the step's first micro-batch.
  void begin_step();
  // The flat buffer's start: add an offset of the layout.
  float* get() const { return gradients_; }
  // The unit's backward of the step's last micro-batch is enqueued: sums it over the ranks.
  void reduce(int unit);
  // The compute stream waits for all sums.
  void finish_step();

 private:
  const TensorLayout& layout_;
  Stream &compute_, &communication_;
  Communicator& communicator_;
  Planned<float> planned_;
  float* gradients_ = nullptr;
  std::vector<Event> computed_;  // a unit
  Event reduced_;
};
