// These functions choose the GPU of a rank and find ranks that took the same one. They are the same in every backend.
#pragma once

#include <string>
#include <vector>

// Returns the number of the GPU that a rank takes among the `visible` ones of its process. A process that sees one GPU
// takes it: a launcher that gives each rank a GPU of its own (srun --gpus-per-task=1, a container for each rank) shows
// it as number 0. Otherwise local rank r takes number r. Throws if r >= `visible`.
int choose_gpu(int visible, int local_rank);

// Returns the UUID as nvidia-smi -L writes it, "GPU-8a6e…"; "" if all bytes are 0, which means that the driver does not
// know it.
std::string gpu_uuid_text(const char (&bytes)[16]);

// Returns the name of the machine, as NCCL tells machines apart: NCCL_HOSTID if it is set, else the host's name.
std::string host_of_this_rank();

struct GpuPlace {
  std::string host, uuid;
};
// Returns the error if several ranks took the same GPU, "" if none did. places[r] is rank r's; an empty uuid is not
// compared.
std::string shared_gpus(const std::vector<GpuPlace>& places);
