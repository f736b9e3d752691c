// Compares a step with the limits of its device (Williams et al. 2009, the roofline model). For each class of work it
// shows the time that the class takes in the step, and the least time that its FLOPs and bytes allow.
//
//   const ReplayRates ceilings = ReplayRates::data_sheet(modelled_device("H100"));
//   split_step(record, record.spans, ceilings).table(tokens)                        // of a step that ran
//   split_step(record, replay(record, ceilings).spans, ceilings).table(tokens)      // of one that did not
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/device/record.h"
#include "llmc/device/replay.h"
// The order decides how time is shared out: time in which several classes work belongs to the first of them.
enum class WorkClass { product, fp8_product, attention, pass, optimizer, other, communication, host_copy };
inline constexpr size_t kWorkClasses = 8;

inline const char* work_class_name(WorkClass work_class);  // "products", …
// Returns `other` for a name that no class lists. A test forbids such names.
WorkClass class_of(const Record::Entry& work);

struct StepSplit {
  struct Part {
    int count = 0;
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

// ------------------------------------------------------------------------------------------- implementation

// The class of an operation follows from the beginning of its name. A collective of one rank is a copy.
struct ClassOfNames {
  WorkClass work_class;
  std::vector<std::string> names;
};
inline const ClassOfNames kNames[] = {
    {WorkClass::product, {"matmul"}},
    {WorkClass::attention, {"attention"}},
    {WorkClass::optimizer, {"adamw", "muon", "global_norm", "gather_window", "scatter_window", "count_not_finite"}},
    {WorkClass::pass,
     {"rmsnorm",
      "rope",
      "qk_norm_rope",
      "qk_dots",
      "swiglu",
      "embedding",
      "classifier",
      "sum_losses",
      "accumulate",
      "add",
      "cast",
      "quantize",
      "transpose_gathered_weights",
      "transpose_quantized",
      "keys_values",
      "weight_amax",
      "scatter_rows",
      "unpad",
      "update_delayed_scales",
      "copy",
      "fill",
      "all_gather",
      "all_to_all",
      "all_reduce",
      "reduce_scatter",
      "broadcast"}},
};

inline double bytes_of(const Record::Entry& work, WorkClass work_class) {
  return double(work_class == WorkClass::communication ? work.sent
                : work_class == WorkClass::host_copy   ? work.crossed
                                                       : work.bytes());
}

// The beginning or the end of an operation.
struct Turn {
  double at;
  size_t work_class;
  int change;
};

inline const char* work_class_name(WorkClass work_class) {
  constexpr const char* names[kWorkClasses] = {
      "products",  "products in FP8", "attention",     "memory-bound passes",
      "optimizer", "other",           "communication", "copies to the host and back"};
  return names[size_t(work_class)];
}

inline WorkClass class_of(const Record::Entry& work) {
  if (work.crossed) return WorkClass::host_copy;
  if (work.ranks.size() > 1) return WorkClass::communication;
  if (is_one_of(work.rate, kFp8Products)) return WorkClass::fp8_product;
  for (const ClassOfNames& c : kNames)
    for (const std::string& name : c.names)
      if (work.name.starts_with(name)) return c.work_class;
  return WorkClass::other;
}

inline StepSplit split_step(const Record& record, const std::vector<Record::Span>& spans, const ReplayRates& ceilings) {
  StepSplit split;
  std::vector<Turn> turns;
  for (const Record::Span& span : spans) {
    const Record::Entry& work = record.entries[size_t(span.entry)];
    const WorkClass work_class = class_of(work);
    StepSplit::Part& part = split.parts[size_t(work_class)];
    ++part.count;
    part.flops += counted_flops(work), part.bytes += bytes_of(work, work_class);
    part.least += replayed_seconds(work, ceilings);
    turns.push_back({span.begin, size_t(work_class), 1}), turns.push_back({span.end, size_t(work_class), -1});
  }
  if (turns.empty()) return split;
  std::stable_sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) { return a.at < b.at; });
  std::array<int, kWorkClasses> working{};
  for (size_t i = 0; i + 1 < turns.size(); ++i) {
    working[turns[i].work_class] += turns[i].change;
    const double seconds = turns[i + 1].at - turns[i].at;
    bool taken = false;
    for (size_t c = 0; c < kWorkClasses; ++c) {
      if (working[c] <= 0) continue;
      split.parts[c].busy += seconds;
      if (!taken) split.parts[c].alone += seconds;
      taken = true;
    }
    if (!taken) split.idle += seconds;
  }
  split.seconds = turns.back().at - turns.front().at;
  return split;
}

inline std::string StepSplit::table(double tokens) const {
  std::string text = format("%-28s %7s %10s %8s %10s %10s %10s %8s %9s %9s\n", "", "count", "of step", "", "us/token",
                            "busy", "roofline", "of it", "TFLOP/s", "GB/s");
  for (size_t c = 0; c < kWorkClasses; ++c) {
    const Part& p = parts[c];
    if (!p.count) continue;
    text += format("%-28s %7d %7.2f ms %7.1f%% %10.3f %7.2f ms %7.2f ms %7.1f%%", work_class_name(WorkClass(c)),
                   p.count, p.alone * 1e3, 100 * p.alone / seconds, p.alone / tokens * 1e6, p.busy * 1e3, p.least * 1e3,
                   100 * p.least / p.busy);
    text += p.flops > 0 ? format(" %9.3f", p.flops / p.busy * 1e-12) : format(" %9s", "");
    text += format(" %9.1f\n", p.bytes / p.busy * 1e-9);
  }
  return text + format("%-28s %7s %7.2f ms %7.1f%% %10.3f\n", "idle", "", idle * 1e3, 100 * idle / seconds,
                       idle / tokens * 1e6);
}
