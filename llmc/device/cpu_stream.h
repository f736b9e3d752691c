// Streams of the CPU backend. Each stream is a queue of work that the host executes. The schedule decides when: at once
// (eager), only when something must wait for the work (lazy), or at random moments (random). If the event that must
// order two operations is missing, the lazy and random schedules can give a wrong result, and the order check
// (order_check.h) throws in every schedule.
#pragma once

#include <functional>

#include "llmc/device/cpu_block.h"
#include "llmc/device/device.h"

namespace cpu_backend {

// Declares the accesses of `work` to the order check, then enqueues `task` in its stream: a kernel, a product, a copy,
// a collective. Throws Error if an access is not ordered after an earlier one that conflicts with it.
void enqueue(const Work& work, std::function<void()> task);

// The same for a collective. A device executes its collectives in the order in which they were enqueued, whatever their
// streams. Otherwise two ranks that wait for each other in different collectives would wait forever. This order is
// unknown to the order check, so it orders nothing else.
void enqueue_collective(const Work& work, std::function<void()> task);

// Returns the settings with which this device executes.
const CpuBackend& backend_of(Device& device);

// Executes all blocks of a kernel on the device's threads. Tasks call it.
void run_grid(Device& device, KernelLaunch launch);

// Calls `body(i)` for i = 0 .. count-1 on the device's threads, concurrently and in any order. Tasks call it.
void parallel_for(Device& device, size_t count, const std::function<void(size_t)>& body);

}  // namespace cpu_backend
