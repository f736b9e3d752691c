// A kernel of a debug build waits at an mbarrier to which `arrivals` of the needed 2 threads come:  bounded_wait
// ARRIVALS
//
// Prints what launch() says.
#undef LLMC_BOUNDED_WAITS
#define LLMC_BOUNDED_WAITS 1
#include <cstdio>
#include <cstdlib>

#include "llmc/device/launch.cuh"
#include "llmc/device/mbarrier.cuh"

namespace {

__global__ void wait_for_two(int arrivals) {
  __shared__ Mbarrier barrier;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 2);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (int(threadIdx.x) < arrivals) mbarrier_arrive(barrier);
  mbarrier_wait(barrier, 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  Device device;
  Stream stream(device, "waits");
  try {
    launch<wait_for_two>({stream, "a wait for two", {}}, 1, 64, 0, atoi(argv[1]));
    puts("waited for all");
  } catch (const std::exception& error) {
    puts(error.what());
  }
}
