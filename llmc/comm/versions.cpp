#include "llmc/comm/versions.h"

#if LLMC_MPI
#include <mpi.h>
#endif
#if LLMC_NCCL
#include <nccl.h>
#endif

#include "llmc/base/error.h"

std::string mpi_version() {
#if LLMC_MPI
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, size_t(length));  // the first words of it
  return all.substr(0, all.find_first_of(",\n"));
#else
  return "";
#endif
}

std::string nccl_version() {
#if LLMC_NCCL
  int version = 0;  // 22707 means 2.27.7
  ncclGetVersion(&version);
  return format("NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
#else
  return "";
#endif
}
