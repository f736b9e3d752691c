#include "llmc/predict/mfu.h"

#include "llmc/base/error.h"
#include "llmc/device/rates.h"

std::string mfu_text(const ModelConfig& config, int T, double tokens_per_second, double peak, bool fp8) {
  const auto percent = [&](bool causal) { return 100 * config.flops_per_token(T, causal) * tokens_per_second / peak; };
  const std::string text = format("MFU %.1f%% (%.1f%% with attention in full: 6 N + 12 L C T) of %.4g TFLOP/s",
                                  percent(true), percent(false), peak * 1e-12);
  if (!fp8) return text;
  return text + format(" in bf16, %.1f%% of %.4g in FP8", percent(true) / kFp8Peak, kFp8Peak * peak * 1e-12);
}
