#include "llmc/comm/watchdog.h"

#include <algorithm>
#include <chrono>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"

namespace {

constexpr std::chrono::milliseconds kBetweenLooks(200);
// A rank that was not heard of for so long is silent: stopped, or its machine is.
constexpr double kSilentSeconds = 1.5;
// A rank whose process has ended gets this time to say why, through its launcher, before the others end.
constexpr double kLastWordsSeconds = 5;

}  // namespace

Watchdog::Watchdog(const Ranks& ranks, double timeout_seconds)
    : whose_(ranks.name()),
      rank_(ranks.rank),
      timeout_seconds_(timeout_seconds),
      roll_call_(ranks.rank, ranks.size),
      last_progress_(seconds()),
      thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ends_.notify_all();
  thread_.join();
}

void Watchdog::connect(const std::string& address) {
  const std::lock_guard lock(mutex_);
  roll_call_.connect(address);
}

void Watchdog::begun(const char* name, CallSite site, const void* stream, std::function<bool()> done) {
  const std::lock_guard lock(mutex_);
  pending_[stream].push_back({++begun_, name, site, seconds(), std::move(done)});
}

void Watchdog::look_at(std::function<std::string()> error) {
  const std::lock_guard lock(mutex_);
  errors_.push_back(std::move(error));
}

Watchdog::Call::Call(Watchdog& watchdog, std::string what) : watchdog_(watchdog) {
  const std::lock_guard lock(watchdog.mutex_);
  place_ = watchdog.calls_.insert(watchdog.calls_.end(), {std::move(what), seconds()});
}
Watchdog::Call::~Call() {
  const std::lock_guard lock(watchdog_.mutex_);
  watchdog_.calls_.erase(place_);
}

// ---------------------------------------------------------------------------------------------- the thread

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, kBetweenLooks, [&] { return ending_; })) {
    remove_done();
    signs_ = roll_call_.exchange(begun_, done_);
    require_no_error();
    require_in_time();
    require_no_rank_gone();
  }
}

void Watchdog::remove_done() {
  for (auto& [stream, queue] : pending_)
    while (!queue.empty() && queue.front().done()) {
      queue.pop_front();
      ++done_;
      last_progress_ = seconds();
    }
}

// Those that end because of another rank take leave, so that nobody takes them for the lost one.
void Watchdog::end(const std::string& what) {
  const std::string late = late_ranks();
  roll_call_.leave();
  end_now("error on " + whose_ + ": " + what + late);
}

void Watchdog::require_no_error() {
  for (const auto& error : errors_)
    if (const std::string text = error(); !text.empty()) end(text);
}

// The clock of what waits starts again with each collective that is done: the GPU may have much to do before it.
void Watchdog::require_in_time() {
  const double now = seconds();
  const Pending* oldest = nullptr;
  for (const auto& [stream, queue] : pending_)
    if (!queue.empty() && (!oldest || queue.front().number < oldest->number)) oldest = &queue.front();
  if (oldest && now - std::max(oldest->begin, last_progress_) > timeout_seconds_)
    end(format("%s (%s:%d), collective %lld of this run: waited %g s", oldest->name, oldest->site.file,
               oldest->site.line, (long long)oldest->number, timeout_seconds_));
  for (const auto& [what, begin] : calls_)
    if (now - std::max(begin, last_progress_) > timeout_seconds_)
      end(format("%s: waited %g s", what.c_str(), timeout_seconds_));
}

void Watchdog::require_no_rank_gone() {
  const bool gone = std::any_of(signs_.begin(), signs_.end(), [](const RollCall::Sign& s) { return s.gone; });
  if (!gone) return;
  if (gone_since_ == 0) gone_since_ = seconds();
  if (seconds() - gone_since_ > kLastWordsSeconds) end("waits in vain");
}

// Returns " for rank 2\n  why": ranks whose process has ended, else silent ones, else those that are furthest behind.
std::string Watchdog::late_ranks() const {
  const auto those = [&](auto&& late) {
    std::string names;
    for (size_t r = 0; r < signs_.size(); ++r)
      if (int(r) != rank_ && signs_[r].begun != RollCall::kLeft && late(signs_[r]))
        names += (names.empty() ? "" : ", ") + std::to_string(r);
    return names.empty() ? names : (names.find(',') == names.npos ? " for rank " : " for ranks ") + names;
  };
  if (const std::string names = those([](const auto& s) { return s.gone; }); !names.empty())
    return names + "\n  whose process has ended; the reason is in its own output";
  if (const std::string names = those([](const auto& s) { return s.age > kSilentSeconds; }); !names.empty())
    return names + "\n  which is silent: its process is stopped, or its machine cannot be reached";
  int64_t last = begun_;
  for (const RollCall::Sign& s : signs_)
    if (s.begun != RollCall::kLeft) last = std::min(last, s.begun);
  if (const std::string names = those([&](const auto& s) { return s.begun == last && last < begun_; }); !names.empty())
    return names + format("\n  which has come to collective %lld, and does something else now", (long long)last);
  return "\n  no rank is behind: a kernel hangs on one of them, or the connection of their GPUs";
}
