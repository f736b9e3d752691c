// How the CPU backend ends when a kernel is wrong. Whoever runs kernels with the rest of the backend, but must survive
// a wrong one, links another stop_kernel() in the place of this file.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "llmc/base/error.h"
#include "llmc/device/cpu_block.h"

namespace cpu_backend {

void stop_kernel(const char* pattern, ...) {
  // This mutex is never unlocked. One report is enough: another OS thread with an error waits here until the process
  // ends.
  static std::mutex one_report;
  one_report.lock();
  va_list args;
  va_start(args, pattern);
  fprintf(stderr, "error in a kernel: %s\n", format_list(pattern, args).c_str());
  va_end(args);
  describe_block();
  fflush(stderr);
  abort();
}

}  // namespace cpu_backend
