// The lock of a run's folder: flock on its train.jsonl, as long as a run writes there. The system frees it when the
// process ends, however it ends. A file server may keep the lock of a machine that was lost for a while (NFSv4: until
// its lease ends, 90 s), so a start waits for it. A lock is never taken from its holder.
#pragma once

#include <cstdio>
#include <string>

#include "llmc/base/json.h"

class RunLock {
 public:
  RunLock() = default;
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;

  // Takes the lock of the run in the folder. Returns false if another process holds it. Returns true without a lock if
  // there is no train.jsonl that can be written, or if the file system has no locks.
  bool take(const std::string& folder);
  // Returns train.jsonl, opened to append to it and locked; null if nothing was taken. The caller closes it.
  FILE* release();

 private:
  int file_ = -1;
};

// Returns what run.json stores of the process that makes a start: {"host": …, "pid": …, "pid_start": clock ticks from
// the boot of the machine}.
Json this_process();

// Returns a sentence about the process that made the last start of the run in the folder, for messages about its lock:
// which it is, and, if it ran on this machine, whether it still runs. "" if run.json does not tell.
std::string last_process(const std::string& folder);
