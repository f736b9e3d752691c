// The statistics that --fp8-stats writes to train.jsonl.
#pragma once

#include <vector>

#include "llmc/base/json.h"
#include "llmc/config/projections.h"
#include "llmc/kernels/quantize.h"

//  {"step": …, "fp8": {"down input": {"amax": …, "scale": [smallest, largest], "saturated": …, "underflowed": …}, …}}
//
// Each entry is for one product and role, over all blocks. `saturated` is the share of the values that were beyond the
// largest number of the format, `underflowed` the share of those that became 0 and were not 0. `statistics` are this
// rank's, by LayerProjection::id().
Json fp8_json(int64_t step, const std::vector<QuantizeStatistics>& statistics, const LayerProjections& projections);
