#include "llmc/train/interrupt.h"

#include <unistd.h>
#include <csignal>

namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1};
// Global, because a signal handler can access nothing else.
volatile sig_atomic_t received[65];

void on_signal(int signal) {
  const bool first = !received[signal];
  received[signal] = 1;
  if (first) return;
  constexpr char kText[] = "\nsecond signal: ending at once, nothing is saved\n";
  const auto ignored = write(STDERR_FILENO, kText, sizeof kText - 1);
  (void)ignored;
  _exit(130);
}

}  // namespace

StopRequests::StopRequests() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (int signal : kSignals) sigaction(signal, &action, nullptr);
}

StopRequests::~StopRequests() {
  for (int signal : kSignals) {
    std::signal(signal, SIG_DFL);
    received[signal] = 0;
  }
}

bool StopRequests::any() const {
  for (int signal : kSignals)
    if (received[signal]) return true;
  return false;
}
