// Where a run goes on from (--resume).
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
  std::string run_folder;                // in which the run goes on; "" where it starts a new one
  std::vector<std::string> checkpoints;  // to try, newest first; none: the run had no checkpoint yet
  bool own_length = false;               // --seq-len was asked for, and is not the checkpoint's

  // Nothing where the run starts anew. Every rank finds the same, if all see the same files. Throws on a DIR that is no
  // run and no checkpoint.
  static std::optional<ResumePoint> find(const Options& options);

  // The options of the newest checkpoint that can be read, for a run of so many ranks, each with the value that the
  // program chose for "auto". Those that arrange the ranks stay away where it was taken of another number of them.
  // Empty without checkpoints.
  Json saved_options(int ranks) const;

  // The newest checkpoint of which every byte is as it was written: the ranks look together, each at its share of the
  // files. One that is refused is told on stderr, with the reason, and added to `refused`; if none is left, that is an
  // error.
  std::optional<Checkpoint> open(Communicator& communicator, Stream& stream, std::vector<std::string>& refused) const;
};

// What a --resume auto that begins without a checkpoint says: "no checkpoint in X: starts from the beginning"; else "".
std::string nothing_to_resume(const Options& options, const std::optional<Checkpoint>& start);

// The command that goes on with the run in this folder; its other options are in its checkpoints.
std::string resume_command(const Ranks& ranks, const std::string& run_folder);

// What stands in the way of checkpoints to come below `root`: refused ones are renamed to *.refused, what was never
// completed is removed. Returns what could not be removed, and why.
std::string make_room(const std::string& root, const std::vector<std::string>& refused);

// Throws if the ranks have not found the same: a folder that some of them do not see.
void require_same_on_all_ranks(const ResumePoint* resume, Communicator& communicator, Stream& stream);

// What a checkpoint says of the run: all that ResumePoint, the consolidation and a person want to know.
Json resume_state(int64_t step, int ranks, const Options& options, const RunSettings& settings,
                  const LlamaConfig& model, int64_t data_tokens);

// How the checkpoint's run cuts its data. One that does not say was written before the concatenation was cut.
WindowRule window_rule_of(const Checkpoint& checkpoint);

// Throws if the checkpoint is of another model.
void require_same_model(const Checkpoint& checkpoint, const LlamaConfig& model);
// Throws where training would go on with other data than the run would have had: their order follows from seed, batch
// and sequence length. Returns what differs in the other options, "--lr 0.001 (was 0.002)".
std::vector<std::string> require_same_run(const Checkpoint& checkpoint, const Options& options, int64_t data_tokens);
// Throws where the training data is not what it was, on all ranks, which all call; the first one alone reads the data.
// Adds what else of the data changed to `changes`, a sentence each.
void require_same_data(const Checkpoint& checkpoint, DataIdentity& identity, Communicator& communicator, Stream& stream,
                       std::vector<std::string>& changes);
