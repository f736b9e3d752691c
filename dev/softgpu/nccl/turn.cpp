#include "dev/softgpu/nccl/turn.h"

#include <cstdlib>

namespace softgpu {
namespace {

int resident = 0;  // kernels; the engine's thread alone counts
int most_resident() {
  static const int most = getenv("LLMC_SOFTGPU_RESIDENT") ? atoi(getenv("LLMC_SOFTGPU_RESIDENT")) : 4;
  return most;
}

}  // namespace

bool Turn::has_come() {
  if (resident_) return true;
  if (comm_->executed + 1 != number_ || resident >= most_resident()) return false;
  ++resident;
  return resident_ = true;
}

void Turn::end() {
  if (resident_) --resident;
  comm_->executed = number_;
}

}  // namespace softgpu
