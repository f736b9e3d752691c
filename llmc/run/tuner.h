// Chooses the algorithms of a run's products (kernels/tuning.h). The choices come from timing a step's passes
// (--tune-products), from a file (--tuning), or from the checkpoint that the run goes on from, so that the bits stay
// the same.
#pragma once

#include <string>

#include "llmc/base/options.h"
#include "llmc/comm/communicator.h"
#include "llmc/data/sampler.h"
#include "llmc/kernels/tuning.h"
#include "llmc/run/run_folder.h"
#include "llmc/train/trainer.h"

class Matmul;

// Returns the choices that --tuning names, or the checkpoint's. Empty stands for the defaults, or for what
// --tune-products will find. A command that is started again with --tune-products and --resume auto keeps its
// checkpoint's choices, if they were found on such a device. The first rank reads a file for all. Throws if choices
// were found on another device or with another library; but if nothing is trained, such choices of a checkpoint are
// ignored. All ranks call.
Tuning open_tuning(const Options& options, const Checkpoint* start, Communicator& communicator, Device& device);

// Returns the fastest choices for a step of `layout`, by timing step `step`. All ranks use those of the first rank. All
// ranks call, with weights in place. The trainer's content is invalid afterwards.
Tuning find_tuning(Trainer& trainer, const Sampler& sampler, const BatchLayout& layout, int data_rank, int64_t step,
                   Communicator& communicator, Device& device);
Tuning find_tuning(Trainer& trainer, const StepInput& input, Communicator& communicator, Device& device);

// Writes the run's tuning.json. If there are no choices, removes an earlier one.
void keep_tuning(const Tuning& tuning, const RunFolder& folder);

// Describes what computes the products, for the banner.
std::string describe_products(const Tuning& tuning);
// Advises a long training on a GPU, whose products are not tuned, to tune them; "" to any other run. A run that goes on
// would change its bits, so it is not advised.
std::string tuning_hint(const Options& options, bool gpu, int64_t steps, bool resumed);
// Says how the run computes differently from the run up to its checkpoint; "" if it does not.
std::string changed_tuning(const Tuning& tuning, const Checkpoint& start);
// Says that the steps do not need some of the choices: the tuning is for another batch, model or precision. "" if they
// need all.
std::string unneeded_choices(const Matmul& products, const Tuning& tuning);
