// The work of several streams, captured once and from then on launched as a whole, many times: a CUDA graph. A launch
// costs the host a fraction of what each of its pieces would; the capture costs it as much again and, on a GPU, some
// memory of the driver's for each piece.
//
//   Graph graph(device);
//   graph.capture(compute, [&] {
//     begun.record(compute), side.wait(begun), …, ended.record(side), compute.wait(ended);
//   });
//   graph.launch(compute);
//
// While it is captured nothing is executed, so the host must not wait, nor touch memory that the work uses. A stream
// comes in when it waits for an event of the capture, and the first stream must wait for all of them before the end.
// Each launch repeats the work with the arguments of the capture: what changes from launch to launch must lie in
// memory.
//
// Between launches the graph's events stand for the end of its last launch. In the capture, events from before it order
// nothing: what they stand for must be ordered before the launch by the stream that launches. In the CPU world all of
// this is checked, as a GPU has it or stricter: the branches of a launch are streams of their own, and every access of
// every launch goes through the order check.
#pragma once

#include <functional>
#include <memory>

#include "llmc/device/device.h"

class Graph {
 public:
  explicit Graph(Device& device);  // one that executes
  ~Graph();
  Graph(Graph&&) noexcept;

  // Calls `work`, whose work of `stream`, and of those that come in, becomes the graph's, in place of what it was.
  // Allocates; what `work` throws leaves the graph as it was.
  void capture(Stream& stream, const std::function<void()>& work);
  bool empty() const;     // nothing was captured
  size_t pieces() const;  // kernels, copies, fills, collectives; 0 of none
  void launch(Stream& stream);

  struct State;

 private:
  Device* device_;
  std::unique_ptr<State> state_;
};
