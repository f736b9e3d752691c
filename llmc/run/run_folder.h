// The folder that a run writes to: runs/<date>-<model>/ or --out. A run never writes over another run's files.
// runs/latest points to the run that was the last to finish its first step.
//
// train.jsonl has one object per line, each with a "step" (how many are done) and a "time" (when it was written, in
// seconds since 1970, UTC). A line is about a training step (step_json), FP8 statistics ("fp8"), an evaluation
// ("val_loss" and others), a verification that has passed ("verified"), or a sample ("sample": its text; bytes that are
// not UTF-8 become U+FFFD). As long as the run lasts, it holds two locks on this file: by flock, which keeps out other
// runs of any version, and by fcntl (F_OFD_SETLK), of which a program that reads along asks (F_OFD_GETLK). So it knows
// when the run has ended, however it ended, and takes no lock that a run could meet.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/run/run_lock.h"

// Returns the starts that a run.json tells, in the order of time; none if there is none that can be read.
Json starts_in(const std::string& path);

class RunFolder {
 public:
  // Makes the folder. Throws if it cannot be made or written, or if it already holds files. A folder in which a run was
  // started and no step was finished is used again. Several runs that start at once get different folders.
  // `lock`: of `out`, if this process has taken it before.
  RunFolder(const std::string& out, const std::string& model, RunLock lock = {});
  // Returns whether a run was started in the folder and finished no step.
  static bool holds_only_a_start(const std::string& path);
  // Removes what a start wrote into the folder `path`, unless a step was finished there. `with_folder` (the start made
  // the folder): also removes the folder, if it is empty then.
  static void remove_start(const std::string& path, bool with_folder);
  // Opens the folder of a run that goes on, with its lock if this process has taken it before. Throws if another
  // process still runs there.
  static RunFolder reopen(const std::string& path, RunLock lock = {});
  // Lines of train.jsonl about steps after `step` move to train.rolled-back.jsonl.
  void roll_back(int64_t step);

  // Returns the last step of which train.jsonl in the folder `path` tells the loss; 0 if it tells none.
  static int64_t logged_steps(const std::string& path);

  const std::string& path() const { return path_; }
  bool was_made() const { return made_; }                           // by this process
  const std::vector<std::string>& moved() const { return moved_; }  // by roll_back(): a sentence each
  // Makes runs/latest point here. This is a convenience: if it fails, the run goes on.
  void become_latest() const;
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // Writes config.json: the options; run.json: what the program made of them (run_facts) and, as "starts", this start
  // of the program (start_record) after those of a run that goes on; memory.txt: the plan as the banner prints it, and
  // its tensors.
  void write_about(const Json& config, Json facts, const Json& start, const std::string& memory_plan) const;
  // Writes memory.txt once more, with what is known by now.
  void write_memory(const std::string& text) const;
  // Throws if the disk has less than `bytes` left for `what`.
  void require_room(uint64_t bytes, const char* what) const;
  // Appends one line to train.jsonl, with the time, and hands it to the system before it returns. Throws on a full
  // disk, and if the folder is gone.
  void log(Json line);
  // Throws if the folder was removed or moved, or if train.jsonl is no longer the file that this run writes.
  void require_there() const;
  // An export of before the step moves to export.before-step-N. Returns a sentence about it, "" if there is none.
  std::string set_export_aside(int64_t step) const;

 private:
  RunFolder() = default;
  // Returns whether the file is locked: some file systems have no locks.
  bool open_log(bool is_new, RunLock lock = {});

  struct Close {
    void operator()(FILE* f) const { fclose(f); }
  };
  std::string path_;
  bool made_ = true;
  Json starts_ = Json::array();  // of a run that goes on: those before this one
  std::vector<std::string> moved_;
  std::unique_ptr<FILE, Close> log_;
};
