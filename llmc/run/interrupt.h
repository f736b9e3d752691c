// Requests to stop: SIGTERM, SIGHUP, Ctrl-C (SIGINT), SIGUSR1, as which scripts/run passes these to all ranks, and
// SIGPIPE, because Ctrl-C also ends the reader of `./train_llama | tee log`. They ask for a stop after the running
// step, however often they come: a rank may get one directly and from its launcher. Only a second Ctrl-C ends the
// process at once, and SIGUSR2, as which scripts/run passes it on.
//
// announce() makes the first of them answer at once, on standard error.
//
// The end of the time that a start may take (--stop-after) is one, too.
//
// SIGINT and SIGHUP stay ignored if the process was started so (nohup, or & in a script). Signals that it was started
// with blocked are unblocked; those that wait count.
#pragma once

#include <csignal>
#include <limits>
#include <string>

#include "llmc/base/clock.h"

class StopRequests {
 public:
  StopRequests();  // installs the handlers
  StopRequests(const StopRequests&) = delete;

  // Asks the process to stop so many seconds after this object was made.
  void end_after(double seconds) { end_ = start_ + seconds; }
  bool is_late() const;  // they are over
  bool any() const;      // they are, or a signal has come
  // From now on the first signal prints a line, now if one has come already: `terminated` if it is SIGTERM, which a
  // launcher also sends to the ranks that are left after one was lost; else `asked`. At most 500 bytes of it.
  void announce(const std::string& asked, const std::string& terminated) const;
  // For a process that has nothing to save: from now on the signals end it, and so does one that has come already.
  void decline();

 private:
  bool signalled() const;

  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE};
  struct sigaction before_[6];
  const double start_ = seconds();
  double end_ = std::numeric_limits<double>::infinity();  // both by clock.h
};
