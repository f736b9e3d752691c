#include "llmc/train/checkpointer.h"

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/printable.h"

Checkpointer::Checkpointer(std::string root, int64_t keep, Trainer& trainer, const Ranks& ranks, Disk& disk)
    : root_(std::move(root)), keep_(keep), trainer_(trainer), ranks_(ranks), disk_(disk) {}

Checkpointer::~Checkpointer() {
  {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
    request_.reset();  // a thread that waits for the answer gets an exception
  }
  join();
}

void Checkpointer::begin(int64_t step) {
  REQUIRE(!under_way(), "a checkpoint of step %lld was begun while that of step %lld is under way", (long long)step,
          (long long)step_);
  step_ = step, removes_old_ = true;
  begun_ = seconds();
  trainer_.take_snapshot();
  enter(Phase::taken);
}

void Checkpointer::write(const Json& state) {
  REQUIRE(waits_for_state(), "a checkpoint of step %lld was to be written, and none was begun", (long long)step_);
  state_ = state;
  const Snapshot& snapshot = trainer_.wait_for_snapshot();
  enter(Phase::writing);
  in_thread([this, &snapshot, others = trainer_.other_state(true)] {
    std::vector<float> buffer;
    write_share([&](StateKind kind, int unit, const Shard& shard) { return snapshot.read(kind, unit, shard, buffer); },
                others);
  });
}

bool Checkpointer::save(int64_t step, const Json& state, bool removes_old) {
  finish();
  step_ = step, removes_old_ = removes_old;
  begun_ = seconds();
  state_ = state;
  enter(Phase::writing);
  in_thread([this, others = trainer_.other_state(false)] {
    write_share([&](StateKind kind, int unit, const Shard& shard) { return ask({kind, unit, shard}); }, others);
  });
  finish();
  return !failed_;
}

const float* Checkpointer::ask(Request request) {
  std::future<void> answered = request.answered.get_future();
  {
    const std::lock_guard lock(mutex_);
    REQUIRE(!given_up_, "the save of step %lld was given up", (long long)step_);
    request_ = std::move(request);
  }
  answered.get();
  return numbers_.data();
}

void Checkpointer::answer() {
  std::optional<Request> request;
  {
    const std::lock_guard lock(mutex_);
    request.swap(request_);
  }
  if (!request) return;
  numbers_.resize(request->shard.count);
  trainer_.read_state(request->kind, request->unit, request->shard, numbers_.data());
  request->answered.set_value();
}

void Checkpointer::write_share(const Read& read, const std::vector<NamedNumbers>& others) {
  write_checkpoint_share(checkpoint_path(root_, step_),
                         {ranks_.rank, ranks_.size, trainer_.layout(), trainer_.saved(), read,
                          ranks_.rank == 0 ? others : std::vector<NamedNumbers>()},
                         disk_);
}

void Checkpointer::publish() {
  publish_checkpoint(checkpoint_path(root_, step_), ranks_.size, state_, files_, disk_);
  if (removes_old_) remove_old();
}

// A checkpoint that cannot be removed costs disk space only, so that this warns and does not throw.
void Checkpointer::remove_old() const {
  if (keep_ == 0) return;
  try {
    const std::vector<int64_t> steps = checkpoints_in(root_);
    const int64_t verified = ::newest_verified(root_);
    for (size_t i = size_t(keep_); i < steps.size(); ++i)
      if (steps[i] != verified) remove_checkpoint(checkpoint_path(root_, steps[i]), disk_);
  } catch (const Error& error) {
    print_error(format("warning: an old checkpoint stays: %s", error.what()));
  }
}

void Checkpointer::verified(int64_t step) {
  verified_step_ = step;
  if (phase_ != Phase::publishing) mark();  // else when it is published: its thread may be removing old ones
}

// The first rank marks those that are verified and have not been removed. Without its mark a checkpoint counts as not
// verified, so that this warns and does not throw.
void Checkpointer::mark() {
  std::erase_if(unmarked_, [&](int64_t step) {
    if (step >= verified_step_) return false;
    const std::string path = checkpoint_path(root_, step);
    try {
      std::error_code error;
      if (ranks_.rank == 0 && std::filesystem::exists(path + "/manifest.json", error))
        mark_verified(path, verified_step_, disk_);
    } catch (const Error& error) {
      print_error(format("warning: %s is verified, and is not marked so: %s", path.c_str(), error.what()));
    }
    return true;
  });
}

std::string Checkpointer::newest_verified() const {
  try {
    const int64_t step = ::newest_verified(root_);
    return step < 0 ? "" : checkpoint_path(root_, step);
  } catch (const Error&) {  // the folder is none any more
    return "";
  }
}

std::string Checkpointer::what_remains() const {
  if (newest().empty()) return "no checkpoint exists";
  const std::string verified = newest_verified(), remains = "the newest checkpoint is " + newest();
  if (verified.empty()) return remains;
  return remains + (verified == newest() ? ", which is verified" : ", the newest verified one is " + verified);
}

void Checkpointer::enter(Phase phase) {
  phase_ = phase;
  stale_ = asked_;
}

StepFlags Checkpointer::flags() {
  ++asked_;
  const Outcome outcome = outcome_;
  return {0, outcome == Outcome::done, outcome == Outcome::failed};
}

void Checkpointer::take_flags(const StepFlags& flags) {
  if (++counted_ <= stale_ || (phase_ != Phase::writing && phase_ != Phase::publishing)) return;
  if (flags.saved + flags.not_saved < ranks_.size) return;
  join();
  const std::string path = checkpoint_path(root_, step_);
  if (outcome_ == Outcome::failed) {
    const std::string who = ranks_.size > 1 ? " on " + ranks_.name() : "";
    print_error(
        format("warning%s: no checkpoint of step %lld: %s\n  the run goes on, and the checkpoints before it stay",
               who.c_str(), (long long)step_, error_.c_str()));
  }
  outcome_ = Outcome::none;
  if (flags.not_saved) {
    attempt([&] {
      if (ranks_.rank == 0) remove_partial_checkpoint(path, disk_);
    });
    outcome_ = Outcome::none;  // a partial checkpoint that stayed is removed when the run is resumed
    enter(Phase::idle);
    failed_ = true;
  } else if (phase_ == Phase::writing) {
    enter(Phase::publishing);
    if (ranks_.rank == 0) in_thread([this] { publish(); });
    else outcome_ = Outcome::done;
  } else {
    enter(Phase::idle);
    failed_ = false, saved_step_ = step_;
    unmarked_.push_back(step_);
    mark();
    news_.push_back({path, seconds() - begun_, step_ < verified_step_});
  }
}

void Checkpointer::finish() {
  REQUIRE(!waits_for_state(), "the checkpoint of step %lld was begun, and nobody said what state to write",
          (long long)step_);
  while (under_way()) {
    answer();
    take_flags(trainer_.sum_flags(flags()));
    if (under_way()) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

std::string Checkpointer::newest() const {
  try {
    const std::vector<int64_t> steps = checkpoints_in(root_);
    return steps.empty() ? "" : checkpoint_path(root_, steps[0]);
  } catch (const Error&) {  // the folder is none any more
    return "";
  }
}

std::vector<Checkpointer::Saved> Checkpointer::news() { return std::exchange(news_, {}); }

template <class F>
void Checkpointer::attempt(F&& f) {
  try {
    f();
    outcome_ = Outcome::done;
  } catch (const std::exception& error) {
    error_ = error.what();
    outcome_ = Outcome::failed;
  }
}

template <class F>
void Checkpointer::in_thread(F&& f) {
  thread_ = std::thread([this, f = std::forward<F>(f)] { attempt(f); });
}

void Checkpointer::join() {
  if (thread_.joinable()) thread_.join();
}
