// state.json of a checkpoint: how far the run is, and what it goes on with.
//
//   version                    of this list of keys; a program refuses a later version than its own
//   step, ranks                steps that are done; ranks that wrote the checkpoint
//   optimizer_steps            how many of the steps made an update
//   skipped_steps              the numbers, from 1, of the steps that made none because they are spikes
//   tokens, sequences          that were trained on, sequences of the last stage's length; a program before stages lacks
//                              the tokens
//   data_tokens                tokens of the training data
//   stages                     training_stage.h: of all stages so far; a program before stages lacks them
//   seconds                    that all steps took
//   model                      the model as a config.json of Hugging Face, model_name and weights_loaded: whether the
//                              run began with loaded weights
//   options                    those of the scope `run` and after it (option_table.h), with the values that the program
//                              chose for "auto"
//   data, data_identity        a sentence about the data; what it is recognised by (data_identity.h), with the rule of
//                              its documents
//   windows                    how the data is split into sequences: kWindows or kMixture, and kLeftOut after it if the
//                              stage has left out samples; an earlier program then refuses the checkpoint
//   left_out                   the steps of this stage whose samples are left out (bad_samples.h); an earlier program lacks
//                              them
//   tokenizer                  file: where tokenizer.json was when the run began; xxh64: its checksum ("" for both
//                              without one); document_token: what begins a text that is tokenized (null: nothing)
//   tuning                     the chosen algorithms of products, or null
//   last_step, last_score      the last lines of train.jsonl about a step and an evaluation, or null
//
// A later program may add keys. What it takes for them in the state of a program before stands in known_state() alone.
#pragma once

#include <cstdint>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/options.h"
#include "llmc/config/config.h"
#include "llmc/train/settings.h"

inline constexpr int64_t kStateVersion = 1;
// The rules of sampler.h: of one source without a name, and of the named sources of a mixture.
inline constexpr const char *kWindows = "concatenation", *kMixture = "mixture", *kLeftOut = ", some left out";

// Returns the keys of a checkpoint that follow from options, settings and model. The training loop adds the others.
Json run_state(int64_t step, int ranks, const Options& options, const RunSettings& settings, const ModelConfig& model,
               int64_t data_tokens);

// Returns the state that was read from a state.json, if this program can go on from it. Throws LaterVersion on a later
// version; throws on an earlier one, and on values that no training writes.
Json known_state(Json state);

// Returns the skipped_steps of a state.
std::vector<int64_t> skipped_steps(const Json& state);

struct LaterVersion : Error {
  using Error::Error;
};
