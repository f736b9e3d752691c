// Covers: promise 8: the arena gives each planned buffer its own bytes; the memory of a container or job is its limit
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "dev/test/test.h"
#include "dev/test/token_files.h"
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

TEST_CASE("a host has what the least of its control groups lets it have") {
  const size_t machine = host_memory_bytes("/nowhere");
  CHECK(machine > (1 << 20));
  // What /proc/self/cgroup says, the limits that lie around, and what follows.
  struct Kind {
    const char *groups, *file, *limit;
    size_t expected;
  };
  const Kind kinds[] = {
      {"0::/\n", "/memory.max", "1000000", 1000000},  // a container
      {"0::/slurm/job_7\n", "/slurm/job_7/memory.max", "1000000", 1000000},
      {"0::/slurm/job_7/step_0\n", "/slurm/job_7/memory.max", "1000000", 1000000},  // of a group around it
      {"0::/slurm/job_7\n", "/memory.max", "max\n", machine},
      {"0::/slurm/job_7\n", "/slurm/job_8/memory.max", "1000000", machine},                    // another's
      {"4:cpu,memory:/job\n0::/\n", "/memory/job/memory.limit_in_bytes", "1000000", 1000000},  // version 1
      {"4:cpuset:/job\n", "/memory/job/memory.limit_in_bytes", "1000000", machine},
      {"9:memory:/\n", "/memory/memory.limit_in_bytes", "9223372036854771712", machine},  // its "max"
      {"nonsense\n", "/memory.max", "1000000", machine}};
  for (const Kind& kind : kinds) {
    CAPTURE(kind.groups);
    const TemporaryFolder root;
    for (const auto& [file, text] : std::vector<std::pair<std::string, std::string>>{
             {"/proc/self/cgroup", kind.groups}, {std::string("/sys/fs/cgroup") + kind.file, kind.limit}}) {
      std::filesystem::create_directories(std::filesystem::path(root / "." + file).parent_path());
      write_file(root / "." + file, text);
    }
    CHECK(host_memory_bytes(root / ".") == kind.expected);
  }
}
