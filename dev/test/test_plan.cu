// Covers: promise 8: the arena gives each planned buffer its own bytes; the memory of a container or job is its limit;
// what is reserved on a GPU in addition to the arena, and what is taken of a device; all ranks plan the same for Muon
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/device/known_devices.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/reserve.h"
#include "llmc/predict/simulation.h"

TEST_CASE("buffers of a plan neither overlap nor leave the arena") {
  Device device;
  MemoryPlan plan;
  std::vector<PlannedTensor> buffers;
  size_t floats = 0;
  for (size_t count : {1, 63, 64, 65, 0, 1000, 3}) {
    buffers.push_back(plan.add(Segment::device, "test", format("buffer of %zu", count), DType::fp32, {count}));
    floats += count;
  }
  CHECK(plan.bytes(Segment::device) >= floats * sizeof(float));
  CHECK(plan.bytes(Segment::device) % MemoryPlan::kAlignment == 0);
  CHECK(plan.bytes(Segment::pinned) == 0);
  const PlannedArray<int> pinned = plan.add_array<int>(Segment::pinned, "test", "pinned", 10);
  const PlannedTensor absent;
  CHECK(plan.device_bytes() == plan.bytes(Segment::device));
  CHECK(buffers[5]->size() == 1000);
  CHECK(buffers[5]->data == nullptr);
  CHECK(pinned.count() == 10);
  CHECK(!absent);

  const Arena arena(device, plan);
  Stream stream(device, "compute");
  for (size_t i = 0; i < buffers.size(); ++i) {
    CHECK(reinterpret_cast<uintptr_t>(buffers[i]->data) % MemoryPlan::kAlignment == 0);
    fill_bytes(stream, buffers[i]->data, static_cast<unsigned char>(i), buffers[i]->span_bytes());
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    std::vector<unsigned char> bytes(buffers[i]->span_bytes());
    copy_bytes(stream, bytes.data(), buffers[i]->data, bytes.size());
    stream.synchronize();
    for (unsigned char byte : bytes) CHECK(byte == i);
  }
  memset(pinned.get(), 0, 40);
}

TEST_CASE("tensors of a plan may lie in the memory of another one, as far as it goes") {
  Device device;
  MemoryPlan plan;
  plan.add(Segment::device, "test", "before", DType::uint8, {1});
  const PlannedTensor region = plan.add(Segment::device, "test", "region", DType::uint8, {1000});
  const PlannedTensor first = plan.add_within(region, 0, "first", DType::fp32, {10, 6}),
                      second = plan.add_within(region, 256, "second", DType::fp32, {186});
  CHECK(plan.bytes(Segment::device) == 256 + 1024);
  says(error_of([&] { plan.add_within(region, 256, "more", DType::fp32, {187}); }),
       "more: 748 bytes at byte 256 of 1000 of region");
  says(error_of([&] { plan.add_within(region, 1024, "empty", DType::fp32, {0}); }), "at byte 1024");
  says(error_of([&] { plan.add_within(region, 4, "crooked", DType::fp32, {1}); }), "at byte 4");
  says(error_of([&] { plan.add_within(first, 0, "third", DType::fp32, {1}); }),
       "third lies in a tensor that this plan");
  CHECK(plan.buffers().size() == 2);
  CHECK(plan.parts().at(1).name == "second");
  CHECK(plan.parts().at(1).offset == 512);
  const Arena arena(device, plan);
  CHECK(first->data == region->data);
  CHECK(first->columns() == 6);
  CHECK(second->data == static_cast<std::byte*>(region->data) + 256);
}

TEST_CASE("a plan's table has the largest categories first, the host's below the device's") {
  MemoryPlan plan;
  plan.add(Segment::pinned, "checkpoints", "c", DType::fp32, {1 << 20});
  plan.add(Segment::symmetric, "gradients", "g", DType::fp32, {1 << 18});
  plan.add(Segment::device, "activations", "a", DType::fp32, {1 << 19});
  CHECK(plan.table() ==
        "activations         2.00 MiB\n"
        "gradients           1.00 MiB\n"
        "device, total       3.00 MiB\n"
        "host checkpoints    4.00 MiB\n"
        "host, total         4.00 MiB");
}

TEST_CASE("a plan lists its tensors, the largest first, equal ones of several blocks in one line") {
  MemoryPlan plan;
  plan.add(Segment::device, "optimizer", "first moments", DType::fp32, {3 << 20});
  for (int block = 0; block < 12; ++block)
    plan.add(Segment::device, "activations", format("block %d q", block), DType::bf16, {1 << 20});
  plan.add(Segment::device, "activations", "block 12 q", DType::bf16, {1 << 19});  // shorter
  plan.add(Segment::pinned, "snapshot", "weights", DType::fp32, {5 << 20});
  plan.add(Segment::symmetric, "scratch", "layer 7", DType::fp32, {256});
  plan.add(Segment::device, "scratch", "nothing", DType::fp32, {0});
  CHECK(plan.tensors() ==
        "  24.0 MiB = 12 x 2.00 MiB   device  activations, block * q\n"
        "  20.0 MiB                   host    snapshot, weights\n"
        "  12.0 MiB                   device  optimizer, first moments\n"
        "  1.00 MiB                   device  activations, block * q\n"
        "  1.00 KiB                   device  scratch, layer 7");
  CHECK(plan.largest_on_device(2) ==
        "  24.0 MiB = 12 x 2.00 MiB   device  activations, block * q\n"
        "  12.0 MiB                   device  optimizer, first moments");
  CHECK(MemoryPlan().tensors().empty());
}

TEST_CASE("a plan counts what is reserved in addition to the arena") {
  MemoryPlan plan;
  plan.add(Segment::device, "activations", "a", DType::fp32, {1 << 19});
  plan.reserve("reserve for a library", 3 << 20);
  plan.reserve("reserve for another", 1 << 20);
  CHECK(plan.device_bytes() == 2 << 20);
  CHECK(plan.needed_device_bytes() == 6 << 20);
  CHECK(plan.table() ==
        "activations             2.00 MiB\n"
        "device, total           2.00 MiB\n"
        "reserve for a library   3.00 MiB\n"
        "reserve for another     1.00 MiB\n"
        "device and reserve      6.00 MiB\n"
        "host, total                  0 B");
}

TEST_CASE("what is reserved follows from the device, the communicators and the attention kernel") {
  const size_t MiB = 1 << 20, driver = 1536 * MiB, stack_of_a_byte = 132 * 2048;
  DeviceInfo cpu;
  cpu.shared_bytes_per_block = 227 << 10;
  struct Kind {
    DeviceInfo device;
    int communicators;
    AttentionOfRun attention;
    size_t expected;
  };
  using enum AttentionKernel;
  const DeviceInfo gpu = modelled_device("H100"), older = modelled_device("A100");
  const Kind kinds[] = {{cpu, 3, {plain, DType::fp32, 64}, 0},
                        {gpu, 0, {automatic, DType::bf16, 128}, driver},
                        {gpu, 0, {mma, DType::bf16, 64}, driver},
                        {gpu, 5, {automatic, DType::bf16, 128}, driver + 5 * 288 * MiB},
                        {gpu, 0, {plain, DType::bf16, 64}, driver + 1616 * stack_of_a_byte},
                        {gpu, 2, {plain, DType::bf16, 128}, driver + 2 * 288 * MiB + 3104 * stack_of_a_byte},
                        {gpu, 0, {automatic, DType::fp32, 64}, driver + 1616 * stack_of_a_byte},  // no other takes it
                        {gpu, 0, {automatic, DType::bf16, 80}, driver + 5120 * stack_of_a_byte},
                        {older, 0, {automatic, DType::bf16, 128}, driver},
                        {older, 0, {plain, DType::bf16, 128}, driver + 3104 * 108 * 2048}};
  for (const Kind& kind : kinds) {
    CAPTURE(kind.attention.HD);
    CAPTURE(kind.communicators);
    MemoryPlan plan;
    add_reserve(plan, kind.device, kind.communicators, kind.attention);
    CHECK(plan.reserved_bytes() == kind.expected);
    CHECK(plan.device_bytes() == 0);
  }
}

TEST_CASE("plain attention's stack is the largest that its kernels were compiled with") {
  std::ifstream baseline("dev/test/cuda_baseline.tsv");  // arch, kernel, registers, stack, ...
  std::map<int, size_t> largest;                         // by head size; 0: the kernels that all others share
  for (std::string line; std::getline(baseline, line);) {
    char kernel[200];
    size_t stack = 0;
    if (line.find("attention_plain") == std::string::npos) continue;
    CHECK(sscanf(line.c_str(), "%*s %199[^\t] %*u %zu", kernel, &stack) == 2);
    size_t& most = largest[atoi(strrchr(kernel, ',') + 1)];
    most = std::max(most, stack);
  }
  CHECK(largest.size() == 3);
  CHECK(plain_attention_stack(64) == largest[64]);
  CHECK(plain_attention_stack(128) == largest[128]);
  CHECK(plain_attention_stack(256) == largest[0]);
}

// Ranks keep other slices, and own other matrices, or none. Of the blocks' matrices the first rank keeps less than
// others.
TEST_CASE("all ranks plan the same for Muon") {
  ModelConfig config = ModelConfig::preset("tiny");
  config.L = 1;  // fewer of the largest matrices than ranks
  const auto planned_by = [&](const Mesh& mesh, int stage) {
    TrainerSettings settings;
    settings.B = 1, settings.T = 64, settings.zero_stage = stage, settings.muon = true;
    const MemoryPlan plan = plan_memory(config, settings, mesh, modelled_device("H100"));
    std::string text;
    for (const MemoryPlan::Buffer& b : plan.buffers())
      if (b.category == "Muon") text += format("%s: %zu bytes\n", b.name.c_str(), b.bytes);
    return text;
  };
  const int ranks = 6;
  for (const int tensor : {1, 2})
    for (const int stage : {0, 1, 3}) {
      CAPTURE(tensor);
      CAPTURE(stage);
      const std::string first = planned_by(Mesh::create(ranks, 0, tensor), stage);
      CHECK(first.find("slices of matrices") != first.npos);
      for (int rank = 1; rank < ranks; ++rank) CHECK(planned_by(Mesh::create(ranks, rank, tensor), stage) == first);
    }
}

TEST_CASE("a device counts what is taken of its memory, and a sentence compares it with the plan") {
  Device device;
  if (device.info().gpu) return;  // whose driver counts in pages, and for all processes
  CHECK(device.taken_bytes() == 0);
  {
    DeviceMemory kept(device, 1000);
    const DeviceMemory moved = std::move(kept), more(device, 24);
    const PinnedMemory of_the_host(device, 4096);
    CHECK(device.taken_bytes() == 1024);
  }
  CHECK(device.taken_bytes() == 0);

  MemoryPlan plan;
  plan.add(Segment::device, "weights", "w", DType::fp32, {1 << 20});
  plan.reserve("reserve for a library", 2 << 20);
  DeviceInfo info;
  info.memory_bytes = 10 << 20, info.free_bytes = 9 << 20;
  CHECK(describe_taken(plan, info, 5 << 20) ==
        "after the first step 5.00 MiB of the device are taken: 4.00 MiB are planned, and 1.00 MiB lie beside the "
        "plan, which reserves "
        "2.00 MiB; 1.00 MiB were in use when the run opened it, CUDA's context included");
  info.free_bytes = info.memory_bytes;
  CHECK(describe_taken(plan, info, 7 << 20) ==
        "after the first step 7.00 MiB of the device are taken: 4.00 MiB are planned, and 3.00 MiB lie beside the "
        "plan, which reserves "
        "2.00 MiB; they are 1.00 MiB more than assumed: where memory runs out, let --memory-limit be that much less");
}

TEST_CASE("a host has what the least of its control groups lets it have") {
  const size_t machine = host_memory_bytes("/nowhere");
  CHECK(machine > (1 << 20));
  // The text of /proc/self/cgroup, the limits in the file system, and the limit that follows from them.
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
