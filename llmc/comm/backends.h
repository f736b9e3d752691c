// What connects several ranks in this build, for make_communicator alone.
#pragma once

#include <memory>
#include <string>

#include "llmc/comm/communicator.h"

// CPU world, built with MPI: the ranks are connected by MPI.
std::unique_ptr<Communicator> make_mpi_communicator(const Ranks& ranks, double timeout_seconds);

// Before NCCL starts, on every rank: switches its NVLS off, unless the user has set NCCL_NVLS_ENABLE. NVLS adds in the
// switch between GPUs, perhaps in another order at each call. Returns what then holds of the order of sums.
std::string settle_order_of_sums();

// CUDA world, built with NCCL: its id comes through MPI, or else through the file `rendezvous`.
std::unique_ptr<Communicator> make_nccl_communicator(Device& device, const Ranks& ranks, const std::string& rendezvous,
                                                     double timeout_seconds);
