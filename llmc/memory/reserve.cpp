#include "llmc/memory/reserve.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

namespace {

constexpr size_t kMiB = size_t(1) << 20;
constexpr size_t kOfDriver = 1536 * kMiB;

// NCCL 2.28 has 24 channels between GPUs of one NVLink switch. In each channel a rank receives from one neighbour of
// the ring through a buffer for each protocol (LL 0.5 MiB, LL128 4.7 MiB, Simple 4 MiB), and it sends to the other
// neighbour with a page of control words. Both are rounded up to pages of 2 MiB. The tree would need two more such
// pairs of buffers per channel, but NCCL connects an algorithm when it is first used, and all-gathers and
// reduce-scatters use the ring. Groups share no buffers (ncclConfig_t::splitShare is 0).
constexpr size_t kChannels = 24, kPeerBuffers = (10 + 2) * kMiB;
constexpr size_t kOfCommunicator = kChannels * kPeerBuffers;

// The driver keeps local memory for as many threads as can be resident at once.
constexpr size_t kResidentThreads = 2048;  // per multiprocessor; some devices have fewer

}  // namespace

void add_reserve(MemoryPlan& plan, const DeviceInfo& device, int communicators, const AttentionOfRun& attention) {
  if (!device.gpu) return;
  plan.reserve("reserve for CUDA and cuBLASLt", kOfDriver);
  if (communicators > 0)
    plan.reserve("reserve for NCCL, " + counted(communicators, "communicator"),
                 size_t(communicators) * kOfCommunicator);
  const auto choice = choose_attention_kernel(attention.asked, device, attention.dtype, attention.HD);
  if (choice.kernel == AttentionKernel::plain)
    plan.reserve("reserve for plain attention's stack",
                 plain_attention_stack(attention.HD) * kResidentThreads * size_t(device.multiprocessors));
}

std::string describe_taken(const MemoryPlan& plan, const DeviceInfo& device, size_t taken) {
  const size_t planned = plan.device_bytes(), reserved = plan.reserved_bytes();
  const size_t beside = taken - std::min(taken, planned), before = device.memory_bytes - device.free_bytes;
  std::string text = format(
      "after the first step %s of the device are taken: %s are planned, and %s lie beside the plan, which reserves %s",
      human_bytes(taken).c_str(), human_bytes(planned).c_str(), human_bytes(beside).c_str(),
      human_bytes(reserved).c_str());
  if (beside > reserved)
    text += format("; they are %s more than assumed: where memory runs out, let --memory-limit be that much less",
                   human_bytes(beside - reserved).c_str());
  if (before > 0)
    text += format("; %s were in use when the run opened it, CUDA's context included", human_bytes(before).c_str());
  return text;
}
