#include "llmc/comm/recording_communicator.h"

#include "llmc/base/error.h"
#if LLMC_DEVICE_CPU
#include "llmc/device/cpu_stream.h"
#else
#include "llmc/device/cuda_stream.h"
#endif

std::string RecordingCommunicator::description() const { return format("%d ranks, recorded by one", size()); }

std::unique_ptr<Communicator> RecordingCommunicator::make_group(const std::vector<int>& world_ranks, int rank) {
  return std::make_unique<RecordingCommunicator>(rank, world_ranks);
}

void RecordingCommunicator::enqueue([[maybe_unused]] const Work& work, const Collective&) {
#if LLMC_DEVICE_CPU
  cpu_backend::enqueue_collective(work, nullptr);
#else
  const RecordedWork recorded(work);
#endif
}
