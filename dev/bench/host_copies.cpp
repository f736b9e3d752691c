// The rate of copies between the device and pinned memory of the host, each way alone and both ways at once:
//
//   build/cuda/bench/host_copies [MiB [times]]        256 MiB, 20 times
//
// Activation offload and host-resident state can count on these rates (activation_store.h, optimizer_state.h). The CPU
// backend's copy is the machine's memmove.
#include <cstdio>
#include <cstdlib>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/slots.h"

int main(int argc, char** argv) try {
  const size_t bytes = size_t(argc > 1 ? atoi(argv[1]) : 256) << 20;
  const int times = argc > 2 ? atoi(argv[2]) : 20;
  REQUIRE(bytes > 0 && times > 0, "host_copies [MiB [times]]: positive numbers");
  Device device;
  MemoryPlan plan;
  const auto leaves = plan.add(Segment::device, "bench", "leaves", DType::uint8, {bytes});
  const auto comes = plan.add(Segment::device, "bench", "comes", DType::uint8, {bytes});
  const auto left = plan.add(Segment::pinned, "bench", "left", DType::uint8, {bytes});
  const auto waits = plan.add(Segment::pinned, "bench", "waits", DType::uint8, {bytes});
  const Arena arena(device, plan);
  HostStreams host(device);
  fill_bytes(host.out, leaves->data, 1, bytes);
  fill_bytes(host.in, waits->data, 2, bytes);
  device.synchronize();
  printf("%s: copies of %zu MiB, mean of %d\n", device.info().name.c_str(), bytes >> 20, times);
  const auto measure = [&](const char* what, bool out, bool in) {
    for (int warm = 1; warm >= 0; --warm) {
      const double begin = seconds();
      for (int i = 0; i < (warm ? 2 : times); ++i) {
        if (out) copy(host.out, left, leaves);
        if (in) copy(host.in, comes, waits);
      }
      device.synchronize();
      if (!warm) printf("%-24s %6.1f GB/s each way\n", what, double(bytes) * times / (seconds() - begin) / 1e9);
    }
  };
  measure("to the host", true, false);
  measure("from the host", false, true);
  measure("both at once", true, true);
  return 0;
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
