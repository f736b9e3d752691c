// Saves a training while it goes on: each rank writes its share in a thread of its own, from a snapshot; the ranks tell
// each other with the steps' votes when they are done, and then the first one publishes the checkpoint.
//
//   checkpointer.begin(step);                                         // all of the step is enqueued
//   trainer->enqueue_step({…, checkpointer.votes(), …});
//   if (checkpointer.waits_for_state()) checkpointer.write(state);    // the step has ended
//   checkpointer.count(trainer->wait_for_step().votes);               // of each step, in their order
//
// A share that cannot be written costs that checkpoint, not the run: the rank says so, what was written of it is
// removed, and those that were complete stay.
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
  // Checkpoints go below `root`, of which the newest `keep` stay; 0: all. All ranks make one.
  Checkpointer(std::string root, int64_t keep, Trainer& trainer, const Ranks& ranks, Disk& disk = Disk::real());
  ~Checkpointer();  // gives up what still reads from the device, and waits for its thread

  // The state after `step` steps is to be saved from a snapshot: the last of them was just enqueued, and nothing is
  // under way.
  void begin(int64_t step);
  // Between begin and write.
  bool waits_for_state() const { return phase_ == Phase::taken; }
  // `state` of the step of begin, which has ended: starts to write.
  void write(const Json& state);
  // The same at once and from the device, when all steps have ended. Returns whether it is saved; the same on all
  // ranks, which speak to each other meanwhile: one that writes for long is not taken for lost.
  bool save(int64_t step, const Json& state);

  // Each that was asked for is counted, in their order: a step's result comes when the next one is under way already.
  Votes votes();
  void count(const Votes& of_all_ranks);
  bool under_way() const { return phase_ != Phase::idle; }
  // Returns when nothing is under way. If something is, all steps must have ended.
  void finish();

  // Whether saves were tried and none came to be; the same on all ranks.
  bool all_failed() const { return failed_ && !succeeded_; }
  // The newest complete one below root, whoever wrote it; "" if there is none.
  std::string newest() const;
  // "the newest checkpoint is X", "no checkpoint exists"
  std::string what_remains() const {
    return newest().empty() ? "no checkpoint exists" : "the newest one is " + newest();
  }

  struct Saved {
    std::string path;
    double seconds;  // from its begin
  };
  // Those since it was last asked.
  std::vector<Saved> news();

 private:
  enum class Phase { idle, taken, writing, publishing };
  enum class Outcome { none, done, failed };
  using Read = std::function<const float*(StateKind kind, int unit, size_t first, size_t count)>;
  // Numbers of the device, for the thread that writes: read by the host's thread, which alone speaks to the device.
  struct Request {
    StateKind kind;
    int unit;
    size_t first, count;
    std::promise<void> answered = {};
  };

  void enter(Phase phase);
  void write_share(const Read& read, const std::vector<NamedNumbers>& others);
  const float* ask(Request request);  // in the thread
  void answer();                      // the other side, if something is asked
  void publish();
  void remove_old() const;
  // What it does or throws is the outcome.
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
  Phase phase_ = Phase::idle;
  int64_t asked_ = 0, counted_ = 0;  // votes
  int64_t stale_ = 0;                // as many of them were asked for before the phase began
  int64_t step_ = 0;
  bool saved_ = false;                       // the last one
  bool succeeded_ = false, failed_ = false;  // any
  Json state_;
  std::atomic<Outcome> outcome_ = Outcome::none;
  std::string error_;
  std::mutex mutex_;
  std::optional<Request> request_;
  bool given_up_ = false;  // nobody answers any more
  std::vector<float> numbers_;
  std::vector<Saved> news_;
  double begun_ = 0;
  std::thread thread_;
};
