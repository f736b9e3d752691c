// What connects several ranks in this build, for make_communicator alone.
#pragma once

#include <memory>
#include <string>

#include "llmc/comm/communicator.h"

// CPU world, built with MPI: the ranks are connected by MPI.
std::unique_ptr<Communicator> make_mpi_communicator(const Ranks& ranks, double timeout_seconds);

// CUDA world, built with NCCL: its id comes through MPI, or else through the file `rendezvous`.
std::unique_ptr<Communicator> make_nccl_communicator(Device& device, const Ranks& ranks, const std::string& rendezvous,
                                                     double timeout_seconds);
