// Finds where a run goes on from (--resume), and what it takes over from there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/base/options.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/ranks.h"
#include "llmc/data/data_identity.h"
#include "llmc/data/text_codec.h"
#include "llmc/run/export_folder.h"
#include "llmc/run/model_source.h"
#include "llmc/train/checkpoint.h"

struct ResumePoint {
  std::string run_folder;                // in which the run goes on; "" if it starts a new one
  std::vector<std::string> checkpoints;  // to try, newest first; none: the run had no checkpoint yet
  // The run ended with a wrong GPU (wrong_gpu.h): `checkpoints` begin with the newest verified one, and these are
  // newer. The start sets them aside.
  bool wrong_gpu = false;
  std::vector<std::string> unverified = {};
  // The run began at a checkpoint of another one, or with a stage, and has saved none since: it begins there again,
  // with the options of its config.json. `stage`: the name of the stage that it begins; "" for none.
  bool begins_again = false;
  std::string stage = {};

  // Returns nothing if the run starts anew. All ranks find the same if they see the same files. Throws on a DIR that is
  // neither a run nor a checkpoint.
  static std::optional<ResumePoint> find(const Options& command_line);

  // Opens the newest checkpoint of which every byte is as it was written; nothing if there are no checkpoints. The
  // ranks verify it together, each its share of the files; for a `dry_run` they verify the small files alone. A refused
  // checkpoint is reported on stderr with the reason and added to `refused`. Throws if all are refused, and on a
  // checkpoint that a later program wrote.
  std::optional<Checkpoint> open(Communicator& communicator, Stream& stream, bool dry_run,
                                 std::vector<std::string>& refused) const;
  // Throws if another process has saved a checkpoint into `run_folder` since find(). Call it with the folder locked.
  void require_newest() const;
  // Returns the options of the newest checkpoint, completed by those of the command line. For one process that does not
  // read the checkpoint's shares.
  Options newest_options(const std::vector<std::string>& arguments) const;

 private:
  void keep_to_verified();
  void find_beginning();
};

// Returns the options with which a run of `ranks` ranks goes on from `start`. Options that were "auto" have the value
// that the program chose. Those that arrange ranks are left out if the checkpoint was taken of another number of ranks.
Json saved_options(const Checkpoint& start, int ranks);
// The same for a run that has no checkpoint of its own: those of its config.json; empty if it has not even that.
Json saved_options(const ResumePoint& resume, int ranks);

// Completes the options of a run that begins the stage --stage there: its length, and no warm-up unless one is asked
// for. With --cooldown-steps N alone the stage is a cooldown of N steps. Throws if its length is not given.
void plan_stage(Options& options, const Options& command_line, const Checkpoint& start);
// A cooldown as a branch: makes the run end with a cooldown that begins at the checkpoint, if the command line names
// --cooldown-steps and no length of the run. `options` are those with which the new run goes on from there. Throws if
// its learning rate falls before a cooldown.
void plan_cooldown(Options& options, const Options& command_line, const Checkpoint& start);

// Returns the model of the checkpoint. If `options` name another --model, --layers or --vocab-size than the
// checkpoint's, they must give the same model: throws if they do not.
ModelSource model_of(const Checkpoint& checkpoint, const Options& options, bool begins_stage = false);
// Returns the tokenizer of the checkpoint's run, from the checkpoint; another one if `options` name another --tokenizer
// than the checkpoint's.
TextCodec codec_of(const Checkpoint& checkpoint, const Options& options, const ModelConfig& config);
// Returns what a checkpoint stores as "tokenizer" (run_state.h). The place of the file is that of `start`, if the codec
// comes from there. `tokenized`: text was tokenized by it.
Json tokenizer_state(const TextCodec& codec, bool tokenized, const Checkpoint* start);
// Returns a sentence if the tokenizer is not that of the checkpoint's run, or if its files have changed where that run
// had found them; else "".
std::string changed_tokenizer(const Checkpoint& checkpoint, const TextCodec& codec, const TokenizerFiles& files);

// Returns the remark of a --resume auto that begins without a checkpoint, "… no checkpoint in X: starts from the
// beginning"; else "".
std::string nothing_to_resume(const Options& options, const std::optional<ResumePoint>& resume,
                              const std::optional<Checkpoint>& start);

// Returns the command that continues the run in this folder, with the options of its machine. The run's options are in
// its checkpoints.
std::string resume_command(const Ranks& ranks, const std::string& run_folder, const Options& options);

// Makes room for checkpoints to come below `root`: renames refused ones to *.refused, or *.refused-2 and so on if there
// is one already, and removes those that were never completed. Returns what could not be removed, and why. Throws if a
// refused one cannot be renamed.
std::string make_room(const std::string& root, const std::vector<std::string>& refused);

// Throws if the ranks have not found the same, for example because some of them do not see the folder.
void require_same_on_all_ranks(const std::optional<ResumePoint>& resume, Communicator& communicator, Stream& stream);
// The same for what they have read.
void require_same_on_all_ranks(const std::string& read, Communicator& communicator, Stream& stream);

// Throws if the checkpoint is of another model.
void require_same_model(const Checkpoint& checkpoint, const ModelConfig& model, bool may_scale = false);
// Returns what of the model a stage changes, as "max_position_embeddings 1024 (was 512)".
std::vector<std::string> scaled_keys(const Checkpoint& checkpoint, const ModelConfig& model);
// Throws if training would go on with other data than the run would have had: the order of the data follows from seed,
// batch and sequence length. Returns the other options that differ, as "--lr 0.001 (was 0.002)".
std::vector<std::string> require_same_run(const Checkpoint& checkpoint, const Options& options, int64_t data_tokens,
                                          bool begins_stage = false);
// Throws, on all ranks, if the training data is not what it was. All ranks call; only the first one reads the data.
// Adds one sentence to `changes` for each other change of the data.
void require_same_data(const Checkpoint& checkpoint, DataIdentity& identity, Communicator& communicator, Stream& stream,
                       std::vector<std::string>& changes);
