#include "llmc/train/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace {

// Global, because a signal handler can access nothing else.
volatile sig_atomic_t received[65];
char announced[512];
std::atomic<size_t> announced_bytes = 0;
std::atomic_flag answered;

void print(const char* text, size_t bytes) {
  const auto ignored = write(STDERR_FILENO, text, bytes);
  (void)ignored;
}

void answer() {
  const int error = errno;  // of the code that the signal interrupts
  const size_t bytes = announced_bytes;
  if (bytes && !answered.test_and_set()) print(announced, bytes);
  errno = error;
}

void on_signal(int signal) {
  const bool first = !received[signal];
  received[signal] = 1;
  if (signal != SIGUSR2 && (first || signal != SIGINT)) return answer();
  constexpr char kText[] = "\nsecond Ctrl-C: ending at once, nothing is saved\n";
  print(kText, sizeof kText - 1);
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

void StopRequests::announce(const std::string& line) const {
  const std::string text = "\n" + line.substr(0, sizeof announced - 2) + "\n";
  announced_bytes = 0;
  memcpy(announced, text.data(), text.size());
  announced_bytes = text.size();
  if (any()) answer();
}

void StopRequests::decline() {
  for (int i = 0; int signal : kSignals) {
    sigaction(signal, &before_[i++], nullptr);
    if (received[signal]) raise(signal);
  }
}
