// The libraries that connect ranks. Each function returns "" in a build without that library.
#pragma once

#include <string>

std::string mpi_version();   // "Open MPI v4.1.4"; may be called before MPI starts
std::string nccl_version();  // "NCCL 2.27.7"
