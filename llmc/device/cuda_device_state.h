// What is behind a Device, a Stream and an Event in the CUDA world: for cuda_device.cpp and cuda_graph.cpp.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <vector>

#include "llmc/device/device.h"
#include "llmc/device/record.h"

struct Device::State {
  DeviceInfo info;
  bool executes = true;  // false: modelled, and only recorded
  std::vector<std::string> stream_names;
  Record* record = nullptr;
  int points = 0;
  std::shared_ptr<Event> capture;                     // the end of what is captured now
  std::vector<std::weak_ptr<Event::State>> captured;  // the events that were recorded there
  // Of the entries of work, in their order.
  struct Timed {
    int entry;
    cudaEvent_t begin, end;
  };
  std::vector<Timed> timed;
};

struct Stream::State {
  cudaStream_t stream = nullptr;
  int number;  // of the record
};

struct Event::State {
  Device* device;
  cudaEvent_t event = nullptr;
  bool recorded = false;
  int point = -1;                   // of the record
  int64_t step = 0;                 // of the device, when it was recorded
  std::shared_ptr<Event> end = {};  // of the capture in which it was recorded: what it stands for outside

  const State& outside() const { return end ? end->state() : *this; }
};
