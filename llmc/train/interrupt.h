// Requests to stop: Ctrl-C (SIGINT), SIGTERM, and SIGUSR1, by which scripts/run passes Ctrl-C to all ranks. The first
// signal asks for a stop after the running step. A second one of the same kind ends the process at once.
#pragma once

class StopRequests {
 public:
  StopRequests();   // installs the handlers
  ~StopRequests();  // restores the default handlers
  StopRequests(const StopRequests&) = delete;

  bool any() const;
};
