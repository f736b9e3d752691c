#include "dev/softgpu/runtime/engine.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "llmc/base/clock.h"

namespace softgpu {

Engine::Engine() {
  std::thread([this] { run(); }).detach();
}

// It lives as long as the process, for its thread may be inside a kernel that never ends.
Engine& Engine::get() {
  static Engine* const engine = new Engine;
  return *engine;
}

// ---------------------------------------------------------------------------------------------- the engine's thread

bool Engine::may_go_on(const CUstream_st& stream) const {
  if (stream.operations.empty()) return false;
  const Operation& operation = stream.operations.front();
  if (operation.begun) return true;
  if (operation.after && !operation.after->done) return false;
  const bool waits_for_the_host = settings_.schedule == CpuBackend::Schedule::lazy || operation.late;
  return !waits_for_the_host || stream.done < stream.wanted;
}

// Returns the stream whose first operation goes on now; null: none can. `waiting`: some operation waits for something
// outside.
cudaStream_t Engine::choose(bool& waiting) {
  std::vector<cudaStream_t> able;
  waiting = false;
  for (cudaStream_t stream : streams_) {
    if (!may_go_on(*stream)) continue;
    if (stream->operations.front().begun) waiting = true;
    else able.push_back(stream);
  }
  if (able.empty()) return nullptr;
  if (settings_.schedule == CpuBackend::Schedule::random) return able[random_.below(able.size())];
  return *std::min_element(able.begin(), able.end(), [](cudaStream_t a, cudaStream_t b) {
    return a->operations.front().number < b->operations.front().number;
  });
}

void Engine::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const uint64_t seen = changes_;
    bool waiting;
    cudaStream_t chosen = choose(waiting), moved = nullptr;
    // What has begun goes on first, wherever it can: it may be what other GPUs wait for.
    for (cudaStream_t stream : std::vector(streams_)) {
      if (stream->operations.empty() || (!stream->operations.front().begun && stream != chosen)) continue;
      Operation& operation = stream->operations.front();  // nobody else removes it
      lock.unlock();
      Progress progress = Progress::done;
      if (operation.begun) {
        progress = operation.poll();
      } else if (operation.work) {
        operation.poll = operation.work();
        if (operation.poll) progress = Progress::moved;
      }
      lock.lock();
      operation.begun = true;
      if (progress != Progress::waits) moved = stream;
      if (progress != Progress::done) continue;
      if (operation.point) operation.point->done = true, operation.point->seconds = seconds();
      stream->operations.pop_front();
      ++stream->done;
      forget_if_done(stream);
      ++changes_;
      changed_.notify_all();
      break;  // the list of streams may have changed
    }
    if (moved || changes_ != seen) continue;
    const auto news = [&] { return changes_ != seen; };
    if (waiting) changed_.wait_for(lock, std::chrono::microseconds(50), news);
    else changed_.wait(lock, news);
  }
}

// ---------------------------------------------------------------------------------------------- the host's side

// The host needs all operations of the stream up to this position, and what they wait for.
void Engine::want(cudaStream_t stream, uint64_t position) {
  if (position <= stream->wanted) return;
  const uint64_t before = std::max(stream->wanted, stream->done);
  stream->wanted = position;
  for (uint64_t p = before; p < position && p - stream->done < stream->operations.size(); ++p)
    if (const auto& after = stream->operations[p - stream->done].after; after && !after->done)
      want(after->stream, after->position);
  ++changes_;
  changed_.notify_all();
}

cudaError_t Engine::wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done) {
  changed_.wait(lock, [&] { return error_ != cudaSuccess || done(); });
  return error_;
}

void Engine::push(std::unique_lock<std::mutex>& lock, cudaStream_t stream, Operation operation) {
  while (error_ == cudaSuccess && stream->operations.size() >= kStreamCapacity) {
    want(stream, stream->done + 1);
    wait_until(lock, [&] { return stream->operations.size() < kStreamCapacity; });
  }
  operation.number = next_number_++;
  operation.late = settings_.schedule == CpuBackend::Schedule::random && random_.below(4) == 0;
  ++stream->enqueued;
  if (operation.point) operation.point->position = stream->enqueued;
  stream->operations.push_back(std::move(operation));
  ++changes_;
  changed_.notify_all();
}

cudaError_t Engine::enqueue(cudaStream_t stream, Task work) {
  std::unique_lock lock(mutex_);
  push(lock, stream, {.work = std::move(work), .after = nullptr, .point = nullptr});
  return error_;
}

cudaError_t Engine::wait_for(cudaStream_t stream, std::shared_ptr<Point> point) {
  std::unique_lock lock(mutex_);
  if (!point->done && point->stream != stream)
    push(lock, stream, {.work = nullptr, .after = std::move(point), .point = nullptr});
  return error_;
}

cudaError_t Engine::record(cudaStream_t stream, std::shared_ptr<Point>& point) {
  std::unique_lock lock(mutex_);
  point = std::make_shared<Point>(Point{stream, 0});
  push(lock, stream, {.work = nullptr, .after = nullptr, .point = point});
  return error_;
}

cudaError_t Engine::synchronize(const std::shared_ptr<Point>& point) {
  std::unique_lock lock(mutex_);
  if (!point->done) want(point->stream, point->position);
  return wait_until(lock, [&] { return point->done; });
}

cudaError_t Engine::synchronize(cudaStream_t stream) {
  std::unique_lock lock(mutex_);
  const uint64_t position = stream->enqueued;
  want(stream, position);
  return wait_until(lock, [&] { return stream->done >= position; });
}

cudaError_t Engine::synchronize() {
  std::unique_lock lock(mutex_);
  std::vector<std::pair<cudaStream_t, uint64_t>> ends;
  for (cudaStream_t stream : streams_) ends.push_back({stream, stream->enqueued});
  for (const auto& [stream, position] : ends) want(stream, position);
  return wait_until(lock, [&] {
    return std::all_of(ends.begin(), ends.end(), [](const auto& end) { return end.first->done >= end.second; });
  });
}

// A caller that asks needs the work sooner or later.
cudaError_t Engine::query(const std::shared_ptr<Point>& point) {
  std::unique_lock lock(mutex_);
  if (error_ != cudaSuccess || point->done) return error_;
  want(point->stream, point->position);
  return cudaErrorNotReady;
}

void Engine::add(cudaStream_t stream) {
  std::unique_lock lock(mutex_);
  streams_.push_back(stream);
}

cudaError_t Engine::remove(cudaStream_t stream) {
  std::unique_lock lock(mutex_);
  stream->removed = true;
  forget_if_done(stream);
  return error_;
}

void Engine::forget_if_done(cudaStream_t stream) {
  if (stream->removed && stream->operations.empty())
    std::erase(streams_, stream);  // the object stays: points may name it
}

cudaError_t Engine::error() {
  std::unique_lock lock(mutex_);
  return error_;
}

void Engine::end(cudaError_t error) {
  std::unique_lock lock(mutex_);
  if (error_ == cudaSuccess) error_ = error;
  ++changes_;
  changed_.notify_all();
}

unsigned Engine::random(unsigned below) {
  std::unique_lock lock(mutex_);
  return unsigned(random_.below(below));
}

}  // namespace softgpu
