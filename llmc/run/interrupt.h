// Requests to stop: SIGTERM, SIGHUP, Ctrl-C (SIGINT), SIGUSR1, as which scripts/run passes these to all ranks, and
// SIGPIPE, because Ctrl-C also ends the reader of `./train_llama | tee log`. They ask for a stop after the running
// step, however often they come: a rank may get one directly and from its launcher. Only a second Ctrl-C ends the
// process at once, and SIGUSR2, as which scripts/run passes it on.
//
// announce() makes the first of them answer at once, on standard error.
//
// SIGINT and SIGHUP stay ignored if the process was started so (nohup, or & in a script). Signals that it was started
// with blocked are unblocked; those that wait count.
#pragma once

#include <csignal>
#include <string>

class StopRequests {
 public:
  StopRequests();  // installs the handlers
  StopRequests(const StopRequests&) = delete;

  bool any() const;
  // From now on the first signal prints a line, now if one has come already: `terminated` if it is SIGTERM, which a
  // launcher also sends to the ranks that are left after one was lost; else `asked`. At most 500 bytes of it.
  void announce(const std::string& asked, const std::string& terminated) const;
  // For a process that has nothing to save: from now on the signals end it, and so does one that has come already.
  void decline();

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE};
  struct sigaction before_[6];
};
