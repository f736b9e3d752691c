// Describes a run: in words for its first lines and its model card, and as run.json for programs that compare runs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/base/options.h"
#include "llmc/comm/mesh.h"
#include "llmc/data/data_chat.h"
#include "llmc/data/data_sources.h"
#include "llmc/data/sampler.h"
#include "llmc/data/text_codec.h"
#include "llmc/data/unigram.h"
#include "llmc/run/model_source.h"
#include "llmc/train/settings.h"

// "1.00M tokens of the bundled text (TinyShakespeare), byte by byte", of a source of a mixture "web, 70%: 1.00M tokens
// of web/*.bin (3 files)". `all` has the source.
std::string describe_data(const DataSource& source, const DataSources& all);
// "held out: 112k tokens, of which 16.4k are measured (--val-tokens): the last tenth"
std::string describe_held_out(const DataSource& held_out, const std::string& measured, const Options& options);
// Lines that say of which sources of a mixture nothing is held out, and which held-out ones are not trained on.
std::vector<std::string> describe_unpaired(const DataSources& train, const DataSources& held_out);
// Says that shares are in proportion to their sum, if that is not 1; else "".
std::string describe_shares(const std::string& train_data);
// Says in which form the data's conversations are, and that the export speaks in it; `replaces`: in place of another
// one.
std::string describe_chat(const DataChat& chat, const TextCodec& codec, bool replaces);
// "begin after <|endoftext|> (1505), and end with <|endoftext|> (1505) or after 200 tokens": where the samples after
// `prompt` begin, which is from the data if `prompt_from` says "held-out" or "training", and which tokens end them.
std::string describe_samples(const std::vector<int32_t>& prompt, const std::string& prompt_from,
                             const std::vector<int>& ends, const Options& options, const TextCodec& codec);
// "an epoch: 7843 sequences, each token once; the run: 0.33 epochs". `sequences` of the run are from these windows.
std::string describe_epochs(const Windows& windows, int64_t sequences);
// "learns 1.2k of 5.6k tokens (22%)", of data with masks.
std::string describe_masks(const LabelCounts& counts);
// Says that the bytes of the text are the tokens, although the model has more.
std::string describe_bytes(const ModelSource& model);
// Two lines: first origin and size, then shape.
std::string describe_model(const ModelSource& model);
// "16 sequences of 128 tokens: 2 ranks x 1 micro-batch of 8"
std::string describe_step(const RunSettings& settings, const Mesh& mesh);
// "skipped 3 steps: 17, 350, 351"; of many the last ones.
std::string describe_skipped(const std::vector<int64_t>& steps);
// Returns a line for each stage: "long, from step 1001 on, after 8.2M tokens: --seq-len 256 (was 128)".
std::string describe_stages(const std::vector<TrainingStage>& stages);
// Says which steps are skipped, and how many of them end the run.
std::string describe_spikes(const Options& options);
// Says when checkpoints are saved, and whether training waits for them.
std::string describe_checkpoints(const Options& options, const RunSettings& settings);
// How several ranks share the state.
std::string describe_sharing(const Mesh& mesh, const Options& options, const ModelConfig& config);
std::string describe_mesh(const Mesh& mesh, const Options& options, const ModelConfig& config);
std::string describe_data_ranks(const Mesh& mesh);  // "2 ranks", "2 groups of 4 ranks"
// Returns what run.json has besides the starts: the facts that the options alone do not tell. `first_step` is the
// number of steps that were done before this start of the program. The steps after it ran on `nodes` machines with
// `ranks` ranks in all. `model` appears as its config.json.
Json run_facts(int64_t first_step, int64_t nodes, int ranks, const DeviceInfo& device, const RunSettings& settings,
               const std::string& fp8, const ModelConfig& model, const TextCodec& codec, int64_t data_tokens,
               const std::vector<TrainingStage>& stages);
