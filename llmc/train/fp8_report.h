// What --fp8-stats writes to train.jsonl.
#pragma once

#include <vector>

#include "llmc/base/json.h"
#include "llmc/kernels/quantize.h"

// {"step": …, "fp8": {"down input": {"amax": …, "scale": [smallest, largest], "saturated": …, "underflowed": …}, …}}:
// of each product and role over all blocks; shares of the values that became the largest of the format, and of those
// that became 0 and were not. `statistics` by fp8_number(), of this rank.
Json fp8_json(int64_t step, const std::vector<QuantizeStatistics>& statistics);
