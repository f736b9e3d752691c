// Model FLOPs utilization: the FLOPs that a model needs for its tokens, as a share of a device's peak.
#pragma once

#include <string>

#include "llmc/config/config.h"

// "MFU 38.0% (41.2% with attention in full: 6 N + 12 L C T) of 989 TFLOP/s". The first figure counts only the
// attention that the causal mask leaves: 6 N + 6 L C T. `tokens_per_second` and `peak` (FLOP/s, bf16) are those of one
// rank. With `fp8` it goes on: " in bf16, 19.0% of 1978 in FP8".
std::string mfu_text(const ModelConfig& config, int T, double tokens_per_second, double peak, bool fp8);
