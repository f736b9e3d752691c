// Everything that is decided before the trainer exists: ranks and device, model, data, batch and precision, and where a
// resumed run goes on from.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "llmc/base/console.h"
#include "llmc/base/options.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/mesh.h"
#include "llmc/comm/ranks.h"
#include "llmc/data/data_identity.h"
#include "llmc/data/sampler.h"
#include "llmc/data/text_codec.h"
#include "llmc/data/token_dataset.h"
#include "llmc/device/device.h"
#include "llmc/kernels/tuning.h"
#include "llmc/predict/planner.h"
#include "llmc/run/evaluation.h"
#include "llmc/run/export_folder.h"
#include "llmc/run/interrupt.h"
#include "llmc/run/model_source.h"
#include "llmc/run/resume.h"
#include "llmc/run/run_data.h"
#include "llmc/run/run_lock.h"
#include "llmc/train/checkpoint.h"
#include "llmc/train/settings.h"

// The members stand in the order in which they are decided.
struct Setup {
  const Options command_line;  // those of the command line and its --config
  const Ranks& ranks;
  std::optional<ResumePoint> resume;  // absent: the run starts anew
  Console console;
  Device device;
  std::unique_ptr<Communicator> communicator;
  RunLock lock;                            // of the folder of a run that goes on, until it is opened; on the first rank
  std::vector<std::string> refused;        // checkpoints newer than `resumed_from`, which cannot be read
  std::optional<Checkpoint> resumed_from;  // of a --dry-run, its shares are not read; absent: the run starts anew
  std::vector<TrainingStage> stages;       // of the training, up to this run's; see training_stage.h
  const Options requested;                 // the command line's, completed by those of `resumed_from`
  Options options;                         // `requested`, with the choices of --plan
  Mesh mesh;
  ModelSource model;
  TextCodec codec;
  std::optional<TokenizerFiles> tokenizer_files;  // only on the first rank of a training
  Json tokenizer;                                 // what checkpoints store of tokenizer_files
  RunData data;                                   // empty with --sample-only
  std::optional<Planner> planner;
  RunSettings settings;
  std::vector<int32_t> prompt;     // samples continue it
  std::string prompt_from;         // "held-out" or "training", if the prompt is from that data
  std::vector<int> ends;           // tokens that end a sample: the model's, and those between the data's documents
  std::optional<Sampler> sampler;  // only in a training
  std::vector<BadStep> left_out;   // those of this stage whose samples the sampler leaves out
  std::optional<DataIdentity> identity;  // only in a training
  std::vector<std::string> changes;      // what is not as it was in `resumed_from`, one sentence each
  // On the first rank, of each source that has masks: of how many tokens the loss counts, a sentence.
  std::vector<std::string> about_masks;
  std::optional<Evaluation> evaluation;
  std::optional<Unigram> unigram;  // its loss of the held-out windows
  Tuning tuning;                   // the algorithms of the products; --tune-products finds them later

  // Opens and decides all of it; `command_line` are the options of these `arguments`. All ranks call. Throws, with what
  // to do about it, on options that contradict each other, the model or the data, and on a checkpoint that the run
  // cannot go on from. Throws Stopped if `stop_requests` (null: none are heard) end the wait for the lock of the run's
  // folder. `ranks` must outlive this object.
  Setup(const Options& command_line, const std::vector<std::string>& arguments, const Ranks& ranks,
        std::optional<ResumePoint> resume, const StopRequests* stop_requests = nullptr);
  Setup(const Setup&) = delete;

  // The stage that this run begins; "" if it begins none. --resume auto begins one only if the run had begun it and
  // saved nothing since.
  const std::string& stage_name() const {
    return resume && command_line.resume == "auto" ? resume->stage : command_line.stage;
  }
  bool begins_stage() const { return !stage_name().empty(); }
  // Returns the number of a step in its stage, by which the data are ordered.
  int64_t step_of_stage(int64_t step) const { return step - settings.first_step; }
  int64_t first_step() const { return resumed_from ? resumed_from->step() : 0; }  // how many steps are done already
  int64_t traced_step() const { return first_step() + 2; }  // by --trace: the steps before it still warm up
  std::string source_name(int source) const { return data.train[size_t(source)].name; }  // of training data
  std::string data_description() const;  // of a training's data, in one line

  // Thrown by all ranks; a sentence.
  struct Stopped : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

 private:
  RunLock take_lock(const StopRequests* stop_requests);
  std::optional<Checkpoint> open_checkpoint();
  std::vector<TrainingStage> open_stages();
  Options complete_options(const std::vector<std::string>& arguments);
  void open_data();
  void choose_prompt();
  std::vector<int32_t> prompt_of_chat();
  void choose_settings();
  void plan_snapshot_if_it_fits();
  void open_sampler();
  void leave_out_samples();
  void require_labels(int source) const;
  void prepare_evaluation();
  void measure_held_out();
};
