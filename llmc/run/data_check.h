// --check-data: reads all data before the first step. Without it, each token is checked when it is trained on.
#pragma once

#include "llmc/base/console.h"
#include "llmc/comm/communicator.h"
#include "llmc/run/run_data.h"

// Checks that every token is below the vocabulary, that every byte of a mask is 0 or 1, and that files have the
// checksums that a manifest lists. All ranks call with the same
// data. Each reads its share, and the first rank prints the progress. A rank that finds anything else throws.
void check_data(const RunData& data, Communicator& communicator, Device& device, Console& console);
