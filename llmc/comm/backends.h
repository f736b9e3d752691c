// The communicators of several ranks that this build has. Only make_communicator uses them.
#pragma once

#include <memory>
#include <string>

#include "llmc/comm/communicator.h"

// CPU backend, built with MPI: MPI connects the ranks.
std::unique_ptr<Communicator> make_mpi_communicator(const Ranks& ranks, double timeout_seconds);

// Disables NCCL's NVLS, unless the user has set NCCL_NVLS_ENABLE. Every rank calls it before NCCL starts. NVLS sums in
// the switch between GPUs, possibly in another order at each call. Returns a text that says in which order sums are
// then added.
std::string settle_order_of_sums();

// CUDA backend, built with NCCL. NCCL's unique id is exchanged over MPI, or else through the file `rendezvous`.
std::unique_ptr<Communicator> make_nccl_communicator(Device& device, const Ranks& ranks, const std::string& rendezvous,
                                                     Timeouts timeouts);
