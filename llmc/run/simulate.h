// --dry-run --nodes or --gpu: a model of a step of a cluster that is not here.
#pragma once

#include "llmc/base/console.h"
#include "llmc/base/options.h"

// --dry-run --nodes: prints the memory of a rank, the bytes that it sends in a step, and the replayed step; with --plan
// mesh before it the fastest meshes, and after it the command that trains on the first of them. --trace also writes the
// step to a file. Of a run that does not train it prints the memory alone. Without --nodes there is one GPU, or
// --gpus-per-node. Returns whether the run fits.
bool simulate(const Options& options, Console& console);
