#include "llmc/device/gpu_choice.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <map>
#include <utility>

#include "llmc/base/error.h"

int choose_gpu(int visible, int local_rank) {
  if (visible == 1) return 0;
  if (local_rank < visible) return local_rank;
  fail_as(ExitCode::unexpected,  // perhaps one of its GPUs has failed
          "this machine has more ranks than the %d GPUs that a process sees\n"
          "  start at most one rank per GPU: --gpus %d or mpirun -np %d; or show each process one GPU: srun "
          "--gpus-per-task=1",
          visible, visible, visible);
}

std::string gpu_uuid_text(const char (&bytes)[16]) {
  std::string text = "GPU";
  bool known = false;
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += format("%02x", (unsigned char)bytes[i]);
    known |= bytes[i] != 0;
  }
  return known ? text : "";
}

std::string host_of_this_rank() {
  if (const char* id = getenv("NCCL_HOSTID"); id && *id) return id;
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, HOST_NAME_MAX);
  return name;
}

std::string shared_gpus(const std::vector<GpuPlace>& places) {
  std::map<std::pair<std::string, std::string>, std::vector<size_t>> ranks;
  for (size_t r = 0; r < places.size(); ++r)
    if (!places[r].uuid.empty()) ranks[{places[r].host, places[r].uuid}].push_back(r);
  std::string text;
  for (const auto& [gpu, takers] : ranks) {
    if (takers.size() == 1) continue;
    text += text.empty() ? "ranks " : "\n  ranks ";
    for (size_t i = 0; i < takers.size(); ++i) text += format("%s%zu", i ? ", " : "", takers[i]);
    text += format(" of %zu take the same GPU, %s on host %s", places.size(), gpu.second.c_str(), gpu.first.c_str());
  }
  if (text.empty()) return text;
  return text +
         "\n  start at most one rank per GPU, and show each process all GPUs of its machine, or one of its own\n"
         "  (srun --gpus-per-task=1, CUDA_VISIBLE_DEVICES); to try several ranks on one GPU, give each an NCCL_HOSTID "
         "of "
         "its own";
}
