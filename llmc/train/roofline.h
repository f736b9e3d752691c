// Compares a step with the limits of its device (Williams et al. 2009, the roofline model). For each class of work it
// shows the time that the class takes in the step beside the least time that its FLOPs and bytes allow.
//
//   const ReplayRates ceilings = ReplayRates::data_sheet(modelled_device("H100"));
//   split_step(record, record.spans, ceilings).table(tokens)                        // of a step that ran
//   split_step(record, replay(record, ceilings).spans, ceilings).table(tokens)      // of one that did not
#pragma once

#include <array>
#include <string>
#include <vector>

#include "llmc/device/record.h"
#include "llmc/device/replay.h"
#include "llmc/model/config.h"

// The order decides how time is shared out: time in which several classes work belongs to the first of them.
enum class WorkClass { product, fp8_product, attention, pass, optimizer, other, communication, host_copy };
inline constexpr size_t kWorkClasses = 8;

const char* work_class_name(WorkClass work_class);  // "products", …
// Returns `other` for a name that no class lists. A test forbids such names.
WorkClass class_of(const Record::Entry& work);

struct StepSplit {
  struct Part {
    int pieces = 0;
    double flops = 0;  // as counted_flops() counts them
    double bytes = 0;  // read plus written; of communication those sent, of host copies those that cross the bus
    double busy = 0;   // seconds in which the class works
    double alone = 0;  // seconds in which no class before it works; with `idle` they add up to the step
    double least = 0;  // seconds that the ceilings allow at least
  };
  std::array<Part, kWorkClasses> parts;
  double seconds = 0, idle = 0;

  const Part& operator[](WorkClass work_class) const { return parts[size_t(work_class)]; }
  // One line for each class that has work, and one for idle time. `tokens` are those of the step, for times per token.
  std::string table(double tokens) const;
};

// `spans` say when the record's work ran, or would run.
StepSplit split_step(const Record& record, const std::vector<Record::Span>& spans, const ReplayRates& ceilings);

// "MFU 38.0% (41.2% with attention in full: 6 N + 12 L C T) of 989 TFLOP/s". The first figure counts only the
// attention that the causal mask leaves: 6 N + 6 L C T. `tokens_per_second` and `peak` (FLOP/s, bf16) are those of one
// rank. With `fp8` it goes on: " in bf16, 19.0% of 1978 in FP8".
std::string mfu_text(const ModelConfig& config, int T, double tokens_per_second, double peak, bool fp8);
