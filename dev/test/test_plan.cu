// Covers: promise 8: the arena gives each planned buffer its own bytes
#include <cstring>
#include <vector>

#include "dev/test/test.h"
#include "llmc/memory/plan.h"

TEST_CASE("buffers of a plan neither overlap nor leave the arena") {
  Device device;
  MemoryPlan plan;
  std::vector<Planned<float>> buffers;
  size_t floats = 0;
  for (size_t count : {1, 63, 64, 65, 0, 1000, 3}) {
    buffers.push_back(plan.add<float>(Segment::device, "test", format("buffer of %zu", count), count));
    floats += count;
  }
  CHECK(plan.bytes(Segment::device) >= floats * sizeof(float));
  CHECK(plan.bytes(Segment::device) % MemoryPlan::kAlignment == 0);
  CHECK(plan.bytes(Segment::pinned) == 0);
  const Planned<int> pinned = plan.add<int>(Segment::pinned, "test", "pinned", 10);
  CHECK(plan.device_bytes() == plan.bytes(Segment::device));

  const Arena arena(device, plan);
  Stream stream(device, "compute");
  for (size_t i = 0; i < buffers.size(); ++i) {
    CHECK(reinterpret_cast<uintptr_t>(arena[buffers[i]]) % MemoryPlan::kAlignment == 0);
    fill_bytes(stream, arena[buffers[i]], static_cast<unsigned char>(i), buffers[i].count * sizeof(float));
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    std::vector<unsigned char> bytes(buffers[i].count * sizeof(float));
    copy_bytes(stream, bytes.data(), arena[buffers[i]], bytes.size());
    stream.synchronize();
    for (unsigned char byte : bytes) CHECK(byte == i);
  }
  memset(arena[pinned], 0, 40);
}

TEST_CASE("a plan's table has the largest categories first, the host's below the device's") {
  MemoryPlan plan;
  plan.add<float>(Segment::pinned, "checkpoints", "c", 1 << 20);
  plan.add<float>(Segment::symmetric, "gradients", "g", 1 << 18);
  plan.add<float>(Segment::device, "activations", "a", 1 << 19);
  CHECK(plan.table() ==
        "activations         2.00 MiB\n"
        "gradients           1.00 MiB\n"
        "device, total       3.00 MiB\n"
        "host checkpoints    4.00 MiB\n"
        "pinned host         4.00 MiB");
}
