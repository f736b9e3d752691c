// Ends this process when it waits in vain for other ranks, from a thread of its own. The thread that trains may be
// inside a launch, a copy or a free that waits for a collective that will never be done, so it cannot look itself.
//
// The watchdog calls neither MPI nor a destructor. It prints which collective is late and which rank it waits for
// (heartbeat.h), with one write, and ends the process with _exit. It has two threads: one asks CUDA and NCCL how far
// they are, and may be held up in a driver; the other alone looks at the clock and talks to the other ranks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "llmc/comm/heartbeat.h"
#include "llmc/comm/ranks.h"
#include "llmc/comm/timeouts.h"
#include "llmc/device/call_site.h"

class Watchdog {
 public:
  // Nothing may wait for other ranks for longer than `timeouts` say.
  Watchdog(const Ranks& ranks, Timeouts timeouts);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;

  // Rank 0's address for the others (Heartbeat::address), and its way to them.
  const std::string& address() const { return heartbeat_.address(); }
  void connect(const std::string& address_of_rank_0);

  // A collective was enqueued in a stream; all ranks call this in the same order. `done` says whether it is executed.
  // The watchdog's thread calls it until it is; it must not wait. `stream` tells streams apart.
  void begun(const char* name, CallSite site, const void* stream, std::function<bool()> done);

  // Adds a look at a library: it returns "", or the error with which the run ends. It must not wait.
  void look_at(std::function<std::string()> error);

  // While it lives, the calling thread is in a call that waits for other ranks.
  class Call {
   public:
    Call(Watchdog& watchdog, std::string what);
    ~Call();
    Call(const Call&) = delete;

   private:
    Watchdog& watchdog_;
    std::list<std::pair<std::string, double>>::iterator place_;
  };

 private:
  struct Pending {
    int64_t number;
    const char* name;
    CallSite site;
    double begin;
    std::function<bool()> done;
  };
  void keep_time();
  void look();
  void remove_done(std::unique_lock<std::mutex>& lock);
  void find_error(std::unique_lock<std::mutex>& lock);
  struct Wait {
    double seconds;
    std::string what;
  };
  Wait longest_wait() const;
  void require_no_error();
  void require_in_time();
  void require_no_rank_lost();
  [[noreturn]] void end(const std::string& what);
  std::string other_ranks(const Heartbeat::Few& ranks) const;
  std::string late_ranks() const;

  const std::string whose_;  // "rank 1 of 4"
  const int rank_;
  const bool first_of_machine_;
  const Timeouts timeouts_;
  Heartbeat heartbeat_;  // of keep_time()
  std::mutex mutex_;     // guards all that follows
  std::condition_variable wakes_;
  bool ending_ = false;
  std::string address_of_rank_0_;  // not yet given to the heartbeat
  int64_t begun_ = 0, done_ = 0;
  // Seconds for which the watchdog has watched. A machine that is suspended meanwhile does not make it impatient.
  double clock_ = 0;
  double last_progress_ = 0;                            // on that clock, as are all times below
  double longest_done_ = 0;                             // seconds of the longest wait for a collective that was done
  std::map<const void*, std::deque<Pending>> pending_;  // by stream, in its order
  std::list<std::pair<std::string, double>> calls_;     // what, and since when
  std::vector<std::function<std::string()>> errors_;
  std::string error_;        // that one of them returned
  double error_since_ = -1;  // when keep_time() first saw it; below 0: it has not
  Heartbeat::News news_;
  double lost_since_ = -1;  // when a rank was first seen gone; below 0: none is
  std::thread time_, looks_;
};
