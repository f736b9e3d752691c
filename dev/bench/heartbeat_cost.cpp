// Measures the cost of a round of heartbeats: all ranks report to rank 0, which answers them (llmc/comm/heartbeat.h).
//
//   build/cpu/bench/heartbeat_cost [RANKS]        4096
//
// All ranks are in this process and connected over the loopback, which needs two files a rank (ulimit -n). The rounds
// follow each other at once; in a run they are 0.2 s apart. The seconds are those of the processor, which other
// processes do not disturb. First all ranks live, then one is silent.
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/comm/heartbeat.h"

static size_t bytes_sent = 0;

// Takes the place of the C library's function.
extern "C" ssize_t send(int socket, const void* data, size_t bytes, int flags) {
  const ssize_t sent = sendto(socket, data, bytes, flags, nullptr, 0);
  if (sent > 0) bytes_sent += size_t(sent);
  return sent;
}

namespace {

double processor_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

struct Cost {
  double seconds = 0;
  size_t bytes = 0;
};

template <class F>
Cost cost_of(F&& f) {
  bytes_sent = 0;
  const double begin = processor_seconds();
  f();
  return {processor_seconds() - begin, bytes_sent};
}

}  // namespace

int main(int argc, char** argv) try {
  const int size = argc > 1 ? atoi(argv[1]) : 4096;
  REQUIRE(size >= 2, "heartbeat_cost [RANKS]: 2 or more");
  const rlim_t files = 2 * rlim_t(size) + 100;
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  REQUIRE(limit.rlim_max >= files, "this process may open %zu files, and %d ranks need %zu\n  raise it: ulimit -n",
          size_t(limit.rlim_max), size, size_t(files));
  limit.rlim_cur = std::max(limit.rlim_cur, files);
  setrlimit(RLIMIT_NOFILE, &limit);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  constexpr double kSilentSeconds = 2;
  Heartbeat zero(0, size, kSilentSeconds);
  std::vector<std::unique_ptr<Heartbeat>> others;
  const Cost start = cost_of([&] {
    for (int r = 1; r < size; ++r) {
      others.push_back(std::make_unique<Heartbeat>(r, size, kSilentSeconds));
      others.back()->connect(zero.address());
      others.back()->exchange(1, 1);
      if (r % 256 == 0) zero.exchange(1, 1);  // lest more wait than the system lets
    }
    zero.exchange(1, 1);
  });
  printf("%d ranks: all connect to rank 0 in %.0f ms of the processor\n", size, start.seconds * 1e3);
  int64_t collectives = 1;
  const auto round = [&](size_t talking) {
    ++collectives;
    const Cost reports = cost_of([&] {
      for (size_t i = 0; i < talking; ++i) others[i]->exchange(collectives, collectives);
    });
    const Heartbeat::News* news = nullptr;
    const Cost answers = cost_of([&] { news = &zero.exchange(collectives, collectives); });
    printf("%4d silent: reports %7.1f kB; rank 0: %7.1f kB, %.0f bytes a rank, %6.2f ms; another rank %5.1f us\n",
           news->silent.count, double(reports.bytes) / 1e3, double(answers.bytes) / 1e3,
           double(answers.bytes) / double(talking), answers.seconds * 1e3, reports.seconds * 1e6 / double(talking));
  };
  for (int i = 0; i < 5; ++i) round(others.size());
  for (int i = 0; i < 3; ++i) {
    sleep(1);
    round(others.size() - 1);
  }
  for (int i = 0; i < 2; ++i) round(others.size() - 1);
  fflush(stdout);
  _exit(0);  // without leave: nobody listens to it
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
