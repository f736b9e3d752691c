// Turns MPI's errors into ours, with the call, MPI's text of the error, and the place: a rank or the network is lost.
// Empty in a build without MPI.
#pragma once

#if LLMC_MPI

#include <mpi.h>

#include <string>

#include "llmc/base/error.h"

inline std::string mpi_error_text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return format("MPI error %d", code);
  return std::string(text, size_t(length));
}

#define MPI_CHECK(call)                                                                                       \
  do {                                                                                                        \
    const int status_ = (call);                                                                               \
    if (status_ != MPI_SUCCESS)                                                                               \
      fail_as(ExitCode::lost, "%s:%d: %s\n  %s", __FILE__, __LINE__, #call, mpi_error_text(status_).c_str()); \
  } while (0)

#endif
