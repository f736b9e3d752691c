#include "llmc/run/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace {

// Global, because a signal handler can access nothing else.
volatile sig_atomic_t received[65];
struct Announcement {
  char text[512];
  std::atomic<size_t> bytes = 0;

  void set(const std::string& line) {
    const std::string whole = "\n" + line.substr(0, sizeof text - 2) + "\n";
    bytes = 0;
    memcpy(text, whole.data(), whole.size());
    bytes = whole.size();
  }
};
Announcement of_request, of_sigterm;
std::atomic_flag answered;

void print(const char* text, size_t bytes) {
  const auto ignored = write(STDERR_FILENO, text, bytes);
  (void)ignored;
}

void answer(bool terminated) {
  const int error = errno;  // of the code that the signal interrupts
  const Announcement& announcement = terminated ? of_sigterm : of_request;
  const size_t bytes = announcement.bytes;
  if (bytes && !answered.test_and_set()) print(announcement.text, bytes);
  errno = error;
}

void on_signal(int signal) {
  const bool first = !received[signal];
  received[signal] = 1;
  if (signal != SIGUSR2 && (first || signal != SIGINT)) return answer(signal == SIGTERM);
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

bool StopRequests::is_late() const { return seconds() >= end_; }

bool StopRequests::any() const { return signalled() || is_late(); }

bool StopRequests::signalled() const {
  for (int signal : kSignals)
    if (received[signal]) return true;
  return false;
}

void StopRequests::announce(const std::string& asked, const std::string& terminated) const {
  of_request.set(asked), of_sigterm.set(terminated);
  if (signalled()) answer(received[SIGTERM]);
}

void StopRequests::decline() {
  for (int i = 0; int signal : kSignals) {
    sigaction(signal, &before_[i++], nullptr);
    if (received[signal]) raise(signal);
  }
}
