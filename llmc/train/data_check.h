// --check-data: reads all data before the first step. Without it, each token is checked when it is trained on.
#pragma once

#include "llmc/comm/communicator.h"
#include "llmc/train/report.h"
#include "llmc/train/run_data.h"

// Every token must be below the vocabulary, and every byte of a mask 0 or 1. All ranks call with the same data, each
// reads its share of them, and the first one tells how far they are. The rank that finds something else throws.
void check_data(const RunData& data, Communicator& communicator, Device& device, Console& console);
