// On a GPU the driver and the libraries take device memory by themselves, in addition to the plan's buffers. Every
// figure here is an assumption until it is measured on a GPU: a training prints how much was really taken. On a real
// GPU the context is made before the run asks how much memory is free, so the context's share of the reserve is left
// unused.
#pragma once

#include <string>

#include "llmc/device/device.h"
#include "llmc/kernels/attention.h"
#include "llmc/memory/plan.h"

// These three decide which attention kernel runs.
struct AttentionOfRun {
  AttentionKernel asked;
  DType dtype;
  int HD;
};

// Adds to the plan the memory that is taken in addition to it on a GPU. There are three amounts. CUDA and cuBLASLt
// take 1.5 GiB: the context, the kernels' code, workspaces, and gaps between allocations. Each NCCL communicator of
// several ranks takes 288 MiB. Plain attention's stack is the local memory of its threads, if that kernel runs. A CPU
// reserves nothing.
void add_reserve(MemoryPlan& plan, const DeviceInfo& device, int communicators, const AttentionOfRun& attention);

// Returns a sentence that compares the bytes `taken` of the device after the first step (Device::taken_bytes) with the
// plan and its reserve. These bytes do not include CUDA's context, which exists before the device is opened: the
// sentence says how much was in use then.
std::string describe_taken(const MemoryPlan& plan, const DeviceInfo& device, size_t taken);
