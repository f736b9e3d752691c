// Saves a training while it goes on. Each rank writes its share of a snapshot in a thread of its own. With each step,
// the ranks tell each other by flags whether they are done. When all are, the first rank publishes the checkpoint.
//
//   checkpointer.begin(step);                                         // all of the step is enqueued
//   trainer->enqueue_step({…, checkpointer.flags(), …});
//   if (checkpointer.waits_for_state()) checkpointer.write(state);    // the step has ended
//   checkpointer.take_flags(trainer->wait_for_step().flags);               // for each step, in order
//
// If a share cannot be written, the run loses that checkpoint and goes on: the rank prints a warning, the partial
// checkpoint is removed, and complete checkpoints stay.
#pragma once

#include <atomic>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "llmc/comm/ranks.h"
#include "llmc/train/checkpoint.h"
#include "llmc/train/trainer.h"

class Checkpointer {
 public:
  // Checkpoints go below `root`; the newest `keep` of them stay (0: all). All ranks construct one.
  Checkpointer(std::string root, int64_t keep, Trainer& trainer, const Ranks& ranks, Disk& disk = Disk::real());
  ~Checkpointer();  // gives up a save that still reads from the device, and waits for its thread

  // Each checkpoint from now on has these files, too. Only those of the first rank count.
  void add_files(SmallFiles files) { files_ = std::move(files); }

  // Begins to save the state after `step` steps, from a snapshot. The last of these steps must be the last one that was
  // enqueued. Throws if another save is under way.
  void begin(int64_t step);
  // True between begin() and write().
  bool waits_for_state() const { return phase_ == Phase::taken; }
  // Starts to write. The step of begin() must have ended; `state` is the state after it.
  void write(const Json& state);
  // Forgets what begin() began: the steps after which the state was to be saved are held.
  void forget() { enter(Phase::idle); }
  // Saves at once, and from the device instead of a snapshot. All steps must have ended. Returns whether the checkpoint
  // is saved, the same on all ranks. The ranks keep exchanging flags meanwhile, so that a rank that writes for a long
  // time is not taken for lost.
  // `removes_old`: --keep-checkpoints holds.
  bool save(int64_t step, const Json& state, bool removes_old = true);

  // Each result of flags(), summed over the ranks, must be passed to take_flags(), in the same order. A step's result
  // comes when the next step is under way already.
  StepFlags flags();
  void take_flags(const StepFlags& of_all_ranks);
  bool under_way() const { return phase_ != Phase::idle; }
  // Returns when nothing is under way. If something is, all steps must have ended.
  void finish();

  // A verification after `step` steps has passed: the checkpoints that this process has saved of fewer steps count as
  // verified. One of the same step is copied from the device after the verification, so a bit may have changed between
  // the two; the next verification would find it. The newest verified one is never removed.
  void verified(int64_t step);
  // Returns the newest verified checkpoint below root; "" if there is none.
  std::string newest_verified() const;
  // Returns after how many steps the state was saved last; -1: it was not.
  int64_t saved_step() const { return saved_step_; }
  // True if the last save that was tried failed; the same on all ranks.
  bool failed() const { return failed_; }
  // Returns the newest complete checkpoint below root, of this run or an earlier one; "" if there is none.
  std::string newest() const;
  // Returns "the newest checkpoint is X" or "no checkpoint exists"; with the newest verified one, if any is.
  std::string what_remains() const;

  struct Saved {
    std::string path;
    double seconds;  // from begin() or save() on
    bool verified;
  };
  // Returns the checkpoints that were saved since the last call.
  std::vector<Saved> news();

 private:
  enum class Phase { idle, taken, writing, publishing };
  enum class Outcome { none, done, failed };
  using Read = std::function<const float*(StateKind kind, int unit, const Shard& shard)>;
  // A request of the writing thread for numbers on the device. The host's thread reads them: it alone uses the device.
  struct Request {
    StateKind kind;
    int unit;
    Shard shard;
    std::promise<void> answered = {};
  };

  void enter(Phase phase);
  void write_share(const Read& read, const std::vector<NamedNumbers>& others);
  const float* ask(Request request);  // called by the writing thread
  void answer();                      // called by the host's thread: answers a request, if there is one
  void publish();
  void mark();
  void remove_old() const;
  // Calls f. The outcome is `done`, or `failed` if f throws.
  template <class F>
  void attempt(F&& f);
  template <class F>
  void in_thread(F&& f);
  void join();

  const std::string root_;
  const int64_t keep_;
  Trainer& trainer_;
  const Ranks& ranks_;
  Disk& disk_;
  SmallFiles files_;
  Phase phase_ = Phase::idle;
  int64_t asked_ = 0, counted_ = 0;  // flags that were given out, flags that came back
  int64_t stale_ = 0;                // how many of them were given out before the phase began
  int64_t step_ = 0, saved_step_ = -1, verified_step_ = -1;
  std::vector<int64_t>
      unmarked_;  // the steps of checkpoints that this process has saved, and that are not verified yet
  bool removes_old_ = true;
  bool failed_ = false;  // the last save
  Json state_;
  std::atomic<Outcome> outcome_ = Outcome::none;
  std::string error_;
  std::mutex mutex_;
  std::optional<Request> request_;
  bool given_up_ = false;  // requests are no longer answered
  std::vector<float> numbers_;
  std::vector<Saved> news_;
  double begun_ = 0;
  std::thread thread_;
};
