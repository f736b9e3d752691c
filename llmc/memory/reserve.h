// Device memory that a run needs beside its plan: what the driver and the libraries take by themselves on a GPU. Every
// figure is an assumption until a GPU has told better: a training prints what was really taken beside it. The context
// is made before the run asks how much is free, so that on a GPU at hand its part is left unused.
#pragma once

#include <string>

#include "llmc/device/device.h"
#include "llmc/kernels/attention.h"
#include "llmc/memory/plan.h"

// What decides which attention kernel runs.
struct AttentionOfRun {
  AttentionKernel asked;
  DType dtype;
  int HD;
};

// Adds to the plan what lies beside it on a GPU. There are three amounts. CUDA and cuBLASLt take 1.5 GiB: the context,
// the kernels' code, workspaces, and gaps between allocations. Each of NCCL's communicators of several ranks takes
// 288 MiB. Plain attention's stack is the local memory of its threads, if that kernel runs. A CPU reserves nothing.
void add_reserve(MemoryPlan& plan, const DeviceInfo& device, int communicators, const AttentionOfRun& attention);

// What of the device is `taken` after the first step (Device::taken_bytes), beside the plan and its reserve, in a
// sentence. CUDA's context is not in it, since it is there before the device is opened: the sentence says what was in
// use then.
std::string describe_taken(const MemoryPlan& plan, const DeviceInfo& device, size_t taken);
