// Streams of the CPU world: each is a queue of work that the host executes. When, is the schedule's choice: at once
// (eager), only when something must wait for it (lazy), or at random moments. Work that nobody ordered by an event is
// seen in the lazy and random schedules by its wrong result, and in any schedule by the order check (order_check.h).
#pragma once

#include <functional>

#include "llmc/device/cpu_block.h"
#include "llmc/device/device.h"

namespace cpu_world {

// Declares the accesses of `work` to the order check, then enqueues `task` in its stream: a kernel, a product, a copy,
// a collective. Throws when an access is not ordered after one that conflicts with it.
void enqueue(const Work& work, std::function<void()> task);

// The same of a collective. Collectives of one device are executed in the order in which they were enqueued, whatever
// their streams: ranks that wait for each other in different ones would wait forever. This orders nothing else: the
// order check knows nothing of it.
void enqueue_collective(const Work& work, std::function<void()> task);

// How this device executes.
const CpuWorld& world_of(Device& device);

// Executes all blocks of a kernel on the device's threads. Called by tasks.
void run_grid(Device& device, KernelLaunch launch);

// Calls `body(i)` for i = 0 .. count-1 on the device's threads, in any order and at once. Called by tasks.
void parallel_for(Device& device, size_t count, const std::function<void(size_t)>& body);

}  // namespace cpu_world
