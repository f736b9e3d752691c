// The steps of a training: what each trains on, when the model is measured and sampled and its state saved, how a
// request to stop ends it, and what the run prints and writes meanwhile.
//
//   TrainingLoop loop(setup, trainer, stop_requests);  // opens nothing yet
//   loop.open_folder();
//   const int64_t steps = loop.run();       // the trainer has its memory and weights
//   loop.report_end(steps, exported);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/console.h"
#include "llmc/base/json.h"
#include "llmc/run/interrupt.h"
#include "llmc/run/rank_times.h"
#include "llmc/run/report.h"
#include "llmc/run/run_folder.h"
#include "llmc/run/setup.h"
#include "llmc/run/wrong_gpu.h"
#include "llmc/train/checkpointer.h"
#include "llmc/train/trainer.h"

class TrainingLoop {
 public:
  // All three must outlive this object.
  TrainingLoop(Setup& setup, Trainer& trainer, const StopRequests& stop_requests);

  // True if the run that is to go on has done all its steps, and has its export: then it is left as it is. All ranks
  // call. Throws if it has ended without a checkpoint, and is to be longer.
  bool is_done();
  // Makes the run's folder, or reopens that of a run that goes on. All ranks call. Only the first rank writes there. If
  // it cannot write, all ranks end.
  void open_folder();
  const RunFolder* folder() const { return folder_ ? &*folder_ : nullptr; }  // null before, and on the other ranks

  // Trains until the last step is done, or until a rank was asked to stop, by a signal or --stop-after; then saves the
  // state, if --checkpoint-on-signal says so. All ranks call. Returns the number of steps that are done. Throws, when
  // the state is saved, at a step that is not finite and at the last of too many spikes in a row; and if a state that
  // should be saved at the end cannot be.
  int64_t run();
  // Lines of train.jsonl: the last step, and the last measurement. Null if there is none.
  const Json& last_step() const { return last_step_; }
  const Json& last_score() const { return last_score_; }

  // Prints the last sample, how long `steps` steps took, and how the run can go on. Throws if the last checkpoint could
  // not be saved, or if the run's folder is gone. `exported`: the weights after these steps are in export/.
  void report_end(int64_t steps, bool exported);
  // Returns which checkpoint is the newest, and how to go on if something later could not be saved.
  std::string what_remains() const;
  // Removes the files of a start that failed before its first step was done. Any rank calls it on an error: the first
  // one may be ended before it can.
  void give_up();

 private:
  void measure_before(int64_t step);
  void report_evaluation(int64_t step);
  void report_sample(const std::string& when, int64_t step);
  void enqueue_step();
  bool looks_at_gpus(int64_t step) const;
  void report_gpus();
  void fill_batch(int64_t step);
  void wait_for_oldest_step();
  void wait_for_all_steps();
  StepInput micro_batch_of(int64_t step, int64_t number, int data_rank);
  void verify();
  [[noreturn]] void end_wrong_bits(const WrongGpu& found);
  void require_same_result(const StepResult& first, const StepResult& again);
  void save_at_halt(int64_t under_way, int64_t learnt);
  std::string record_bad_steps(int64_t first, int64_t end, const std::string& why);
  [[noreturn]] void end_not_finite(const StepResult& result, const StepReport& report);
  [[noreturn]] void end_bad_steps(const StepResult& result);
  std::string memory_text(const std::string& known = "") const;
  void report_first_step();
  StepReport report_of(const StepResult& result) const;
  std::string speed_of(int64_t steps) const;
  bool is_due() const;
  void begin_checkpoint();
  void write_checkpoint();
  void save_at_stop();
  void report_checkpoints();
  bool saves_at(int64_t step) const;
  void answer_stop_requests() const;
  bool stop_now() const;
  Json checkpoint_state() const;

  Setup& setup_;
  Trainer& trainer_;
  const StopRequests& stop_requests_;
  const Options& options_;
  const RunSettings& settings_;
  Console& console_;

  std::optional<RunFolder> folder_;  // on the first rank only
  std::string run_path_;             // of the folder, on all ranks
  std::string unfinished_folder_;    // folder of a run that has not finished a step; else ""
  bool made_folder_ = true;          // the folder was not there before
  std::optional<Checkpointer> checkpointer_;
  std::optional<RankTimes> rank_times_;               // with --gpu-every
  bool stop_requested_ = false;                       // a rank has asked to stop, with a step that has ended
  bool due_ = false;                                  // the first rank has said that it is time for a checkpoint
  int64_t last_checkpoint_step_ = -1;                 // steps of the checkpoint that was begun last; -1: none was
  double last_checkpoint_time_ = 0;                   // when it was begun; if none was, when the run began
  int64_t enqueued_, finished_;                       // numbers of steps: enqueued, and reported
  std::vector<int32_t> inputs_, labels_, positions_;  // (micro-batches, B, T); no positions without packed documents
  std::vector<int32_t> sources_;                      // (micro-batches, B)
  double training_seconds_ = 0;                       // of all steps, also those before a resume
  std::vector<int64_t> skipped_;                      // the spikes among all steps, by their numbers from 1
  Json last_step_, last_score_;
};
