// The settings of the CPU backend, read from the environment.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "llmc/base/error.h"
#include "llmc/device/device.h"

namespace {

template <class Choice>
Choice choice_from(const char* variable, Choice otherwise, const std::map<std::string, Choice>& choices) {
  const char* text = getenv(variable);
  if (!text || !*text) return otherwise;
  auto found = choices.find(text);
  if (found != choices.end()) return found->second;
  std::string known;
  for (const auto& [name, value] : choices) known += " " + name;
  fail("%s=%s is not a choice\n  choose one of:%s", variable, text, known.c_str());
}

unsigned long number_from(const char* variable, unsigned long otherwise) {
  const char* text = getenv(variable);
  if (!text || !*text) return otherwise;
  char* end;
  const unsigned long value = strtoul(text, &end, 10);
  REQUIRE(*end == 0 && *text != '-', "%s=%s is not a whole number", variable, text);
  return value;
}

}  // namespace

CpuBackend CpuBackend::from_environment(int local_ranks) {
  CpuBackend backend;
  backend.order = choice_from<ThreadOrder>(
      "LLMC_CPU_ORDER", backend.order,
      {{"forward", ThreadOrder::forward}, {"reverse", ThreadOrder::reverse}, {"random", ThreadOrder::random}});
  backend.schedule =
      choice_from<Schedule>("LLMC_CPU_STREAMS", backend.schedule,
                            {{"eager", Schedule::eager}, {"lazy", Schedule::lazy}, {"random", Schedule::random}});
  backend.copy_timing = choice_from<CopyTiming>(
      "LLMC_CPU_COPIES", backend.copy_timing,
      {{"late", CopyTiming::late}, {"early", CopyTiming::early}, {"random", CopyTiming::random}});
  backend.seed = number_from("LLMC_CPU_SEED", backend.seed);
  backend.pinned_bytes = number_from("LLMC_CPU_PINNED", backend.pinned_bytes);
  backend.processes = local_ranks;
  const int cores = std::max(1, int(std::thread::hardware_concurrency()));
  backend.threads = int(number_from("LLMC_THREADS", (unsigned long)std::max(1, cores / local_ranks)));
  REQUIRE(backend.threads >= 1 && backend.threads <= 1024, "LLMC_THREADS=%d: expected 1 to 1024", backend.threads);
  return backend;
}
