// The state of a Device, a Stream and an Event in the CUDA backend, for cuda_device.cpp and cuda_graph.cpp.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <vector>

#include "llmc/device/device.h"
#include "llmc/device/record.h"

struct Device::State {
  DeviceInfo info;
  bool executes = true;  // false: a modelled device, whose work is only recorded
  std::vector<std::string> stream_names;
  Record* record = nullptr;
  int points = 0;
  std::shared_ptr<Event> capture;                     // the end of the capture in progress; null: none
  std::vector<std::weak_ptr<Event::State>> captured;  // the events recorded in that capture
  // One for each of the record's entries of work, in their order.
  struct Timed {
    int entry;
    cudaEvent_t begin, end;
  };
  std::vector<Timed> timed;
};

struct Stream::State {
  cudaStream_t stream = nullptr;
  int number;  // of this stream in a record
};

struct Event::State {
  Device* device;
  cudaEvent_t event = nullptr;
  bool recorded = false;
  int point = -1;                   // number of the recorded point in a record
  int64_t step = 0;                 // the device's step when the event was recorded
  std::shared_ptr<Event> end = {};  // end of the capture that recorded it; see outside()

  // Outside its capture, an event of a graph stands for the end of the last launch.
  const State& outside() const { return end ? end->state() : *this; }
};
