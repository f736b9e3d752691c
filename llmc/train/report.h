// What a run tells its user: the lines of the terminal and of train.jsonl.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/base/text.h"

struct StepReport {
  int64_t step, steps;  // step counts from 1 here: how many are done
  double loss;          // nats a token
  int64_t labels;       // of the global batch that are not ignored; of none there is no loss
  double grad_norm;
  double learning_rate;
  double seconds;       // of this step
  double tokens;        // of the global batch
  double mfu;           // model FLOPs / (time x peak of all devices); 0 where the peak is not known
  size_t memory_bytes;  // planned on a device
  double eta_seconds;
  // Tensors beyond what their delayed FP8 scale could hold, and lost to it: all became 0; -1: there are no such scales.
  int64_t fp8_overflows = -1, fp8_underflows = -1;
};

// "step 120/2000 | loss 3.1416 | norm 0.82 | lr 2.9e-04 | 412 ms | 79.5k tok/s | MFU 47.2% | 61.3 GiB | eta 13m"
std::string step_line(const StepReport& report);
// step, loss, grad_norm, lr, step_ms, tokens_per_s and, where known, mfu, fp8_overflows and fp8_underflows. A loss or
// norm that is not finite is a string, since JSON has no number for it.
Json step_json(const StepReport& report);

// A number for JSON, which has none that is not finite: "nan", "inf", "-inf" then, and so does plain_number for people.
Json json_number(double x);
std::string plain_number(double x);

// Lines for people: colour and a progress bar only where standard output is a terminal. Silent on all ranks but the
// first. A quiet one prints no banner and no progress: results to standard output, warnings to standard error.
class Console {
 public:
  explicit Console(bool speaks, bool quiet = false);

  void line(const std::string& text);
  // "name   text" of the start banner, text continued on further lines if it has any.
  void item(const char* name, const std::string& text);
  void heading(const std::string& text);
  void warning(const std::string& text);
  // A line for which the program was started: a quiet console prints it, too.
  void result(const std::string& text);
  // Part of a line, as samples come in: whatever bytes a model says. A quiet console prints it, too.
  void piece(const std::string& text);
  // A line, and below it the bar, until the next line.
  void progress(const std::string& text, double fraction);
  // Ends a line that is begun and takes the bar away. Any rank calls it before it reports an error: each has seen the
  // pieces that the first one printed.
  void end_line();

 private:
  void print(FILE* file, const std::string& text);
  const bool speaks_, quiet_, terminal_;
  bool has_bar_ = false, in_line_ = false;
  PrintableText printable_;
};
