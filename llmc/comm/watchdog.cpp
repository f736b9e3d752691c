#include "llmc/comm/watchdog.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/comm/ras.h"

namespace {

constexpr std::chrono::milliseconds kBetweenLooks(200);
// A rank whose process has ended gets this time to say why, through its launcher, before the others end.
constexpr double kLastWordsSeconds = 5;
// The news that a rank is gone takes some exchanges with rank 0.
constexpr double kNewsSeconds = 1;
constexpr double kRasSeconds = 3;

}  // namespace

Watchdog::Watchdog(const Ranks& ranks, Timeouts timeouts)
    : whose_(ranks.name()),
      rank_(ranks.rank),
      first_of_machine_(ranks.local_rank == 0),
      timeouts_(timeouts),
      heartbeat_(ranks.rank, ranks.size, timeouts.silent),
      time_([this] { keep_time(); }),
      looks_([this] { look(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wakes_.notify_all();
  time_.join();
  looks_.join();
}

// keep_time() connects at once, not at its next turn: rank 0 soon knows a rank that ends early.
void Watchdog::connect(const std::string& address) {
  const std::lock_guard lock(mutex_);
  address_of_rank_0_ = address;
  wakes_.notify_all();
}

void Watchdog::begun(const char* name, CallSite site, const void* stream, std::function<bool()> done) {
  const std::lock_guard lock(mutex_);
  pending_[stream].push_back({++begun_, name, site, clock_, std::move(done)});
}

void Watchdog::look_at(std::function<std::string()> error) {
  const std::lock_guard lock(mutex_);
  errors_.push_back(std::move(error));
}

Watchdog::Call::Call(Watchdog& watchdog, std::string what) : watchdog_(watchdog) {
  const std::lock_guard lock(watchdog.mutex_);
  place_ = watchdog.calls_.insert(watchdog.calls_.end(), {std::move(what), watchdog.clock_});
}
Watchdog::Call::~Call() {
  const std::lock_guard lock(watchdog_.mutex_);
  watchdog_.calls_.erase(place_);
}

// ---------------------------------------------------------------------------------------------- the threads

void Watchdog::keep_time() {
  double before = seconds();
  std::unique_lock lock(mutex_);
  for (;;) {
    wakes_.wait_for(lock, kBetweenLooks, [&] { return ending_ || !address_of_rank_0_.empty(); });
    if (ending_) return;
    const double now = seconds();
    clock_ += std::min(now - before, 1.0);
    before = now;
    const int64_t begun = begun_, done = done_;
    const std::string address = std::exchange(address_of_rank_0_, "");
    lock.unlock();
    if (!address.empty() && rank_ != 0) heartbeat_.connect(address);
    const Heartbeat::News& news = heartbeat_.exchange(begun, done);
    lock.lock();
    news_ = news;
    require_no_error();
    require_in_time();
    require_no_rank_lost();
  }
}

void Watchdog::look() {
  std::unique_lock lock(mutex_);
  while (!wakes_.wait_for(lock, kBetweenLooks, [&] { return ending_; })) {
    remove_done(lock);
    find_error(lock);
  }
}

// Only this thread removes, and what is added meanwhile moves nothing: the first of a queue stays where it is while it
// is asked without the lock.
void Watchdog::remove_done(std::unique_lock<std::mutex>& lock) {
  for (auto& [stream, queue] : pending_)
    while (!queue.empty()) {
      const std::function<bool()>& is_done = queue.front().done;
      lock.unlock();
      const bool done = is_done();
      lock.lock();
      if (!done) break;
      longest_done_ = std::max(longest_done_, clock_ - std::max(queue.front().begin, last_progress_));
      queue.pop_front();
      ++done_;
      last_progress_ = clock_;
    }
}

void Watchdog::find_error(std::unique_lock<std::mutex>& lock) {
  for (size_t i = 0; i < errors_.size(); ++i) {
    const std::function<std::string()> error = errors_[i];
    lock.unlock();
    std::string text = error();
    lock.lock();
    if (!text.empty()) error_ = std::move(text);
  }
}

// The others learn that this rank ends the run, so that they neither wait for it nor take it for the lost one. If no
// rank is lost, NCCL may know which connection hangs. One rank of a machine asks it, since each answer takes all ranks;
// the others give it the time, for the launcher ends it with them.
void Watchdog::end(const std::string& what) {
  std::string late = late_ranks();
  heartbeat_.leave(Heartbeat::kEnds);
  if (!news_.ends && !news_.gone.count && !news_.silent.count) {
    if (!first_of_machine_) std::this_thread::sleep_for(std::chrono::duration<double>(kRasSeconds));
    else if (const std::string faults = ask_ras(kRasSeconds); !faults.empty())
      late += "\n  NCCL's own status (RAS):\n" + faults;
  }
  end_now("error on " + whose_ + ": " + what + late);
}

// A library often fails because another rank is lost, and is the first to notice.
void Watchdog::require_no_error() {
  if (error_.empty()) return;
  if (error_since_ < 0) error_since_ = clock_;
  if (clock_ - error_since_ > kNewsSeconds) end(error_);
}

// The clock of what waits starts again with each collective that is done: the GPU may have much to do before it.
Watchdog::Wait Watchdog::longest_wait() const {
  Wait longest{0, ""};
  const auto take = [&](double begin, auto&& what) {
    const double waited = clock_ - std::max(begin, last_progress_);
    if (waited > longest.seconds) longest = {waited, what()};
  };
  const Pending* oldest = nullptr;
  for (const auto& [stream, queue] : pending_)
    if (!queue.empty() && (!oldest || queue.front().number < oldest->number)) oldest = &queue.front();
  if (oldest)
    take(oldest->begin, [&] {
      return format("%s (%s:%d), collective %lld of this run", oldest->name, oldest->site.file, oldest->site.line,
                    (long long)oldest->number);
    });
  for (const auto& [what, begin] : calls_) take(begin, [&what = what] { return what; });
  return longest;
}

void Watchdog::require_in_time() {
  const Wait wait = longest_wait();
  if (wait.seconds > timeouts_.comm) end(format("%s: waited %g s", wait.what.c_str(), timeouts_.comm));
}

// A rank that ends tells why itself; the others wait a little, and end too. A connection that ended is a suspicion
// alone, and so is a silent one: perhaps the network lost it, and NCCL has another one. It counts while a wait is
// longer than any that ended well.
void Watchdog::require_no_rank_lost() {
  const Wait wait = longest_wait();
  const auto in_vain = [&] { end(wait.what + (wait.what.empty() ? "" : ": ") + "waits in vain"); };
  if (!news_.ends && !news_.gone.count) lost_since_ = -1;
  else if (lost_since_ < 0) lost_since_ = clock_;
  else if (clock_ - lost_since_ > kLastWordsSeconds && (news_.ends || wait.seconds > longest_done_ + kLastWordsSeconds))
    in_vain();
  const double silent = timeouts_.silent;
  if (silent > 0 && news_.silent.count && news_.silence >= silent &&
      wait.seconds > std::max(silent, longest_done_ + std::min(silent, kLastWordsSeconds)))
    in_vain();
}

// Returns " for ranks 2, 5 and 3 more", without this rank; "" if there is no other one.
std::string Watchdog::other_ranks(const Heartbeat::Few& ranks) const {
  std::vector<int> others;
  std::copy_if(ranks.first, ranks.first + ranks.named(), std::back_inserter(others), [&](int r) { return r != rank_; });
  if (others.empty()) return "";
  const int more = ranks.count - ranks.named();
  std::string names = others.size() == 1 && more == 0 ? " for rank" : " for ranks";
  for (size_t i = 0; i < others.size(); ++i) names += format("%s %d", i ? "," : "", others[i]);
  return more ? names + format(" and %d more", more) : names;
}

// Returns " for rank 2\n  why": ranks whose process has ended, else silent ones, those that were never heard of, or
// those that are furthest behind.
std::string Watchdog::late_ranks() const {
  const Heartbeat::Least &begun = news_.begun, &done = news_.done;  // a number is INT64_MAX before any rank was heard
  const int64_t most_done = std::max(news_.most_done, done_);
  const std::pair<std::string, std::string> reasons[] = {
      {other_ranks(news_.gone), "whose process has ended; the reason is in its own output"},
      {other_ranks(news_.silent), format("silent for %.0f s: its process is stopped, or its machine cannot be reached",
                                         std::floor(double(news_.silence)))},
      {other_ranks(news_.unheard),
       "which was never heard of: it has not come so far, or no TCP connection to rank 0 is possible"},
      {begun.number < begun_ ? other_ranks(begun.ranks) : "",
       format("which has come to collective %lld, and does something else now", (long long)begun.number)},
      {done.number < most_done ? other_ranks(done.ranks) : "",
       format("whose GPU is still at collective %lld", (long long)std::min(done.number, most_done) + 1)},
  };
  for (const auto& [names, why] : reasons)
    if (!names.empty()) return names + "\n  " + why;
  if (news_.ends) return "\n  another rank has ended the run; the reason is in its output";
  return "\n  no rank is late: a kernel hangs, or the connection of the GPUs";
}
