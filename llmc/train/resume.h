// Finds where a run goes on from (--resume).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/base/options.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/ranks.h"
#include "llmc/train/checkpoint.h"
#include "llmc/train/data_identity.h"
#include "llmc/train/sampler.h"
#include "llmc/train/settings.h"

struct ResumePoint {
  std::string run_folder;                // in which the run goes on; "" if it starts a new one
  std::vector<std::string> checkpoints;  // to try, newest first; none: the run had no checkpoint yet
  bool own_length = false;               // --seq-len was asked for, and is not the checkpoint's

  // Returns nothing if the run starts anew. All ranks find the same if they see the same files. Throws on a DIR that is
  // neither a run nor a checkpoint.
  static std::optional<ResumePoint> find(const Options& options);

  // Returns the options of the newest checkpoint that can be read, for a run of `ranks` ranks. Options that were "auto"
  // have the value that the program chose. The options that arrange ranks are left out if the checkpoint was taken of
  // another number of ranks. Empty without checkpoints.
  Json saved_options(int ranks) const;

  // Opens the newest checkpoint of which every byte is as it was written; nothing if there are no checkpoints. The
  // ranks verify it together, each its share of the files. A refused checkpoint is reported on stderr with the reason
  // and added to `refused`. Throws if all are refused.
  std::optional<Checkpoint> open(Communicator& communicator, Stream& stream, std::vector<std::string>& refused) const;
};

// Returns the remark of a --resume auto that begins without a checkpoint, which ends with "no checkpoint in X: starts
// from the beginning"; else "".
std::string nothing_to_resume(const Options& options, const std::optional<Checkpoint>& start);

// Returns the command that continues the run in this folder. Its other options are in its checkpoints.
std::string resume_command(const Ranks& ranks, const std::string& run_folder);

// Makes room for checkpoints to come below `root`: renames refused ones to *.refused and removes those that were never
// completed. Returns what could not be removed, and why. Throws if a refused one cannot be renamed.
std::string make_room(const std::string& root, const std::vector<std::string>& refused);

// Throws if the ranks have not found the same, for example because some of them do not see the folder.
void require_same_on_all_ranks(const ResumePoint* resume, Communicator& communicator, Stream& stream);

// Returns what a checkpoint stores about the run: all that ResumePoint, the consolidation and a person want to know.
Json resume_state(int64_t step, int ranks, const Options& options, const RunSettings& settings,
                  const ModelConfig& model, int64_t data_tokens);

// Returns how the checkpoint's run cuts its data. A checkpoint that does not say so is older than
// WindowRule::concatenation and means per_file.
WindowRule window_rule_of(const Checkpoint& checkpoint);

// Throws if the checkpoint is of another model.
void require_same_model(const Checkpoint& checkpoint, const ModelConfig& model);
// Throws if training would go on with other data than the run would have had: the order of the data follows from seed,
// batch and sequence length. Returns the other options that differ, as "--lr 0.001 (was 0.002)".
std::vector<std::string> require_same_run(const Checkpoint& checkpoint, const Options& options, int64_t data_tokens);
// Throws, on all ranks, if the training data is not what it was. All ranks call; only the first one reads the data.
// Adds one sentence to `changes` for each other change of the data.
void require_same_data(const Checkpoint& checkpoint, DataIdentity& identity, Communicator& communicator, Stream& stream,
                       std::vector<std::string>& changes);
