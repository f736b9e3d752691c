// The search for what made a step not finite. Such a step leaves the weights and all state as they were, so it can be
// run again: this time each tensor is looked at when it has been computed.
//
//   NotFiniteSearch search(…);
//   transformer.observe_tensors([&](const ObservedTensor& t) { search.look_at(t); });   // then the step
//   search.found();
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "llmc/comm/communicator.h"
#include "llmc/config/parameters.h"
#include "llmc/device/device.h"
#include "llmc/model/pass.h"

// The first tensor of a step that is not finite on this rank.
struct NotFinite {
  int64_t micro_batch;  // from 0
  int64_t position;     // how many tensors of the micro-batch were looked at before it
  std::string tensor;   // "the output of qkv in block 3"
  int64_t token = -1;   // of the micro-batch's B T tokens, the first one with such a number; -1: not known
};

class NotFiniteSearch {
 public:
  // `communicator`: of all ranks. `tokens`: those of a micro-batch, if this rank has all rows of every tensor; else 0.
  // `fp8_word`, on the device, is the word to which kernels report what FP8 cannot hold; null: nothing is in FP8.
  NotFiniteSearch(Communicator& communicator, Stream& stream, const ParameterLayout& layout, int64_t tokens,
                  const uint32_t* fp8_word);

  void look_at(const ObservedTensor& seen);
  const std::optional<NotFinite>& found() const { return found_; }

 private:
  std::optional<int64_t> first_in(const Tensor& tensor);
  void look_at_gradients(const ObservedTensor& seen);
  void report(const std::string& tensor, int64_t token = -1);

  Communicator& communicator_;
  Stream& stream_;
  const ParameterLayout& layout_;
  const int64_t tokens_;
  const uint32_t* fp8_word_;
  DeviceMemory first_;  // a uint32_t
  int64_t micro_batch_ = -1, position_ = 0;
  std::optional<NotFinite> found_;
};
