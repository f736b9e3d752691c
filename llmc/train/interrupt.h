// Requests to stop: Ctrl-C (SIGINT), SIGTERM, and SIGUSR1, which is how scripts/run passes Ctrl-C to all ranks. The
// first asks for a stop after the running step; a second of the same signal ends the process at once.
#pragma once

class StopRequests {
 public:
  StopRequests();   // installs the handlers
  ~StopRequests();  // gives the signals back to their default
  StopRequests(const StopRequests&) = delete;

  bool any() const;
};
