// The work of several streams, captured once and then launched as a whole, many times: a CUDA graph. A launch costs the
// host a fraction of the time that its operations would cost one by one. The capture costs the host that full time once
// more and, on a GPU, some driver memory for each operation.
//
//   Graph graph(device);
//   graph.capture(compute, [&] {
//     begun.record(compute), side.wait(begun), …, ended.record(side), compute.wait(ended);
//   });
//   graph.launch(compute);
//
// During a capture nothing is executed, so the host must neither wait nor touch memory that the work uses. A stream
// joins the capture when it waits for an event of the capture, and the first stream must wait for all of them before
// the end. Each launch repeats the work with the arguments of the capture: a value that changes from launch to launch
// must lie in memory.
//
// Between launches, an event of the graph stands for the end of the last launch. During the capture, a wait for an
// event from before it orders nothing: the stream that launches must wait for such an event before the launch. The CPU
// backend checks all of this, as strictly as a GPU or more so: the branches of a launch are streams of their own, and
// every access of every launch goes through the order check.
#pragma once

#include <functional>
#include <memory>

#include "llmc/device/device.h"

class Graph {
 public:
  explicit Graph(Device& device);  // throws if the device executes nothing
  ~Graph();
  Graph(Graph&&) noexcept;

  // Calls `work`. Everything that `work` enqueues in `stream`, and in streams that join, replaces the graph's former
  // content. Allocates. If `work` throws, the graph stays as it was. Throws if another capture or a recording is in
  // progress.
  void capture(Stream& stream, const std::function<void()>& work);
  bool empty() const;           // nothing was captured
  size_t pieces() const;        // kernels, copies, fills, collectives; 0 if empty
  void launch(Stream& stream);  // throws if empty

  struct State;

 private:
  Device* device_;
  std::unique_ptr<State> state_;
};
