// Where a run writes: runs/<date>-<model>/ or --out, never over another run's files. runs/latest points to the run
// whose first step has ended last.
//
// train.jsonl has one object a line, each with a "step" (how many are done): of a training step (step_json), of a
// validation ("val_loss"), or of a sample ("sample": its text; bytes that are no UTF-8 are U+FFFD). As long as the run
// lasts it holds a lock (flock) on this file, so that who reads along knows when it has ended, however it ended.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "llmc/base/json.h"

class RunFolder {
 public:
  // Makes the folder. Throws if it cannot be made or written, or if it already holds files; but a folder in which a run
  // was started and no step was finished is taken. Several runs that start at once get different folders.
  RunFolder(const std::string& out, const std::string& model);
  // Removes what a start wrote into the folder `path`, unless a step was finished there; and the folder itself if it
  // is empty then and the start made it.
  static void remove_start(const std::string& path, bool with_folder);
  // The folder of a run that goes on from the state after `step` steps: what its train.jsonl tells of later ones moves
  // to train.rolled-back.jsonl, an export of before to export.before-step-N. Throws if another process still runs
  // there.
  static RunFolder reopen(const std::string& path, int64_t step);

  const std::string& path() const { return path_; }
  bool was_made() const { return made_; }                           // by this process
  const std::vector<std::string>& moved() const { return moved_; }  // by reopen(): what is where now, a sentence each
  // runs/latest points here from now on: a convenience, without which a run goes on.
  void become_latest() const;
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // config.json: the options. run.json: what the program made of them (run_facts). memory.txt: the plan as the banner
  // prints it.
  void write_about(const Json& config, const Json& facts, const std::string& memory_plan) const;
  // memory.txt once more, with what is known by now.
  void write_memory(const std::string& text) const;
  // Throws if the disk has less than `bytes` left for `what`.
  void require_room(uint64_t bytes, const char* what) const;
  // Appends one line to train.jsonl, handed to the system when it returns. Throws on a full disk.
  void log(const Json& line);

 private:
  RunFolder() = default;
  bool open_log(const char* mode);  // whether it is locked, too: some file systems know no locks

  struct Close {
    void operator()(FILE* f) const { fclose(f); }
  };
  std::string path_;
  bool made_ = true;
  std::vector<std::string> moved_;
  std::unique_ptr<FILE, Close> log_;
};
