// A run reports each step by a line of the terminal, and one of train.jsonl.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/json.h"

struct StepReport {
  int64_t step, steps;  // `step` is how many are done, so it counts from 1
  double loss;          // cross-entropy without z-loss, nats per token
  int64_t labels;       // labels of the global batch that are not ignored; if there are none, there is no loss
  double grad_norm;
  double learning_rate;
  double seconds;       // of this step
  double tokens;        // of the global batch
  int gpus;             // that share it; 0: CPUs do
  int64_t all_tokens;   // of all steps so far, also those before a resume
  double mfu;           // model FLOPs / (time x bf16 peak of all devices), with the pairs of attention that the causal
                        // mask allows; 0 if the peak is not known
  double mfu_full;      // the same with all pairs of attention: 6 N + 12 L C T instead of 6 N + 6 L C T
  size_t memory_bytes;  // planned per device
  double eta_seconds;
  std::optional<double> z_loss;  // nats per token; empty: there is none
  // Tensors with numbers beyond their delayed FP8 scale, and tensors whose numbers all became 0 at it; -1: no such
  // scales.
  int64_t fp8_overflows = -1, fp8_underflows = -1;
  std::string skipped;  // "loss", "norm" or "loss, norm": which of them is a spike, so that no update is made; else ""
  // The list has the sources of a mixture that have labels in this step: the name, and the loss in nats per token.
  std::vector<std::pair<std::string, double>> sources = {};
};

// "step 12/20 | loss 3.141 | norm 0.8 | lr 2.9e-04 | 412 ms | 79.5k tok/s | MFU 43.0% (full 47.2%) | 61.3 GiB | eta 3s"
// On several GPUs the speed is "365k tok/s, 11.4k a GPU". Of a mixture the loss is "loss 3.1410 (web 3.2, code 2.9)".
std::string step_line(const StepReport& report);
// Returns step, loss, grad_norm, lr, step_ms, tokens_per_s, tokens (so far) and, if known, z_loss, mfu, fp8_overflows
// and fp8_underflows; of a mixture also loss/web and so on, of the sources that have labels in the step; skipped, if
// the step is. A loss or norm that is not finite becomes a string, since JSON has no number for it.
Json step_json(const StepReport& report);
