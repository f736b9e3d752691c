// How far a step is from the limits of its device (Williams et al. 2009, the roofline model): its work by class, with
// the time that each class takes in the step beside the least that its FLOPs and bytes allow.
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

// In the order in which time is shared out: a moment in which several classes work belongs to the first of them.
enum class WorkClass { product, fp8_product, attention, pass, optimizer, other, communication, host_copy };
inline constexpr size_t kWorkClasses = 8;

const char* work_class_name(WorkClass work_class);  // "products", …
// `other`: of a name that no class lists, which a test forbids.
WorkClass class_of(const Record::Entry& work);

struct StepSplit {
  struct Part {
    int pieces = 0;
    double flops = 0;  // as rates count them
    double bytes = 0;  // read plus written; of communication and copies what leaves or crosses
    double busy = 0;   // seconds in which the class works
    double alone = 0;  // those in which no class before it does: they add up to the step, with idle
    double least = 0;  // by the ceilings
  };
  std::array<Part, kWorkClasses> parts;
  double seconds = 0, idle = 0;

  const Part& operator[](WorkClass work_class) const { return parts[size_t(work_class)]; }
  // A line for each class that has work, and idle.
  std::string table(double tokens) const;
};

// `spans`: when the record's work ran, or would run.
StepSplit split_step(const Record& record, const std::vector<Record::Span>& spans, const ReplayRates& ceilings);

// "MFU 41.2% (attention in full: 6 N + 12 L C T), 38.0% (causal: 6 N + 6 L C T) of 989 TFLOP/s"; `peak`: of one rank,
// whose rate in tokens a second this is.
std::string mfu_text(const LlamaConfig& config, int T, double tokens_per_second, double peak);
