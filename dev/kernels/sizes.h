// How much a check or a benchmark tries: LLMC_SIZES=every, LLMC_SIZES=few, or the usual.
//
// `few` is for what executes each thread slowly: ThreadSanitizer, and the software GPU, whose benchmarks then call each
// kernel once, at sizes of a CPU.
#pragma once

#include <cstdlib>
#include <string>

inline std::string asked_sizes() {
  const char* sizes = getenv("LLMC_SIZES");
  return sizes ? sizes : "";
}
inline bool few_sizes() { return asked_sizes() == "few"; }
