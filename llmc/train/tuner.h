// Which algorithms the products of a run use (kernels/tuning.h): found by timing a step's passes (--tune-products), of
// a file (--tuning), or of the checkpoint that it goes on from, so that the bits go on.
#pragma once

#include <string>

#include "llmc/base/options.h"
#include "llmc/comm/communicator.h"
#include "llmc/kernels/tuning.h"
#include "llmc/train/run_folder.h"
#include "llmc/train/sampler.h"
#include "llmc/train/trainer.h"

class Matmul;

// Those that --tuning names, or the checkpoint's; empty: the defaults, or what --tune-products will find. A command
// that is started again, with --tune-products and --resume auto, keeps those of its checkpoint. The first rank reads a
// file for all. Throws where they were found on another device or with another library; those of a checkpoint that is
// not trained on are left out then. All ranks call.
Tuning open_tuning(const Options& options, const Checkpoint* start, Communicator& communicator, Device& device);

// Those that are fastest for a step of `layout` from `step` on: the first rank's, for all. All ranks call, with weights
// in place; what the trainer holds afterwards is of no use.
Tuning find_tuning(Trainer& trainer, const Sampler& sampler, const BatchLayout& layout, int data_rank, int64_t step,
                   Communicator& communicator, Device& device);
Tuning find_tuning(Trainer& trainer, const StepInput& input, Communicator& communicator, Device& device);

// Writes the run's tuning.json, or removes that of before where there are no choices.
void keep_tuning(const Tuning& tuning, const RunFolder& folder);

// For the banner: what computes the products.
std::string describe_products(const Tuning& tuning);
// How the run computes otherwise than up to its checkpoint; "" if it does not.
std::string changed_tuning(const Tuning& tuning, const Checkpoint& start);
// Choices that the steps do not need: the tuning is of another batch, model or precision. "" if it needs all.
std::string unneeded_choices(const Matmul& products, const Tuning& tuning);
