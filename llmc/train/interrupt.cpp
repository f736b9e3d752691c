#include "llmc/train/interrupt.h"

#include <unistd.h>

namespace {

// Global, because a signal handler can access nothing else.
volatile sig_atomic_t received[65];

void on_signal(int signal) {
  const bool first = !received[signal];
  received[signal] = 1;
  if (signal != SIGUSR2 && (first || signal != SIGINT)) return;
  constexpr char kText[] = "\nsecond Ctrl-C: ending at once, nothing is saved\n";
  const auto ignored = write(STDERR_FILENO, kText, sizeof kText - 1);
  (void)ignored;
  _exit(130);
}

}  // namespace

StopRequests::StopRequests() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigset_t ours;
  sigemptyset(&ours);
  for (int i = 0; int signal : kSignals) {
    struct sigaction& before = before_[i++];
    sigaction(signal, &action, &before);
    if ((signal == SIGINT || signal == SIGHUP) && before.sa_handler == SIG_IGN) sigaction(signal, &before, nullptr);
    sigaddset(&ours, signal);
  }
  sigprocmask(SIG_UNBLOCK, &ours, nullptr);
}

bool StopRequests::any() const {
  for (int signal : kSignals)
    if (received[signal]) return true;
  return false;
}

void StopRequests::decline() {
  for (int i = 0; int signal : kSignals) {
    sigaction(signal, &before_[i++], nullptr);
    if (received[signal]) raise(signal);
  }
}
