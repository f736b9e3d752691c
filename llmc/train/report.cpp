#include "llmc/train/report.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "llmc/base/error.h"

std::string plain_number(double x) { return std::isnan(x) ? "nan" : format("%g", x); }
Json json_number(double x) { return std::isfinite(x) ? Json(x) : Json(plain_number(x)); }

std::string step_line(const StepReport& r) {
  const int width = int(std::to_string(r.steps).size());
  const std::string loss = r.labels ? format("loss %.4f", r.loss) : "nothing to learn";
  std::string line = format("step %*lld/%lld | %s | norm %.2f | lr %.1e | %.0f ms | %s tok/s", width, (long long)r.step,
                            (long long)r.steps, loss.c_str(), r.grad_norm, r.learning_rate, r.seconds * 1e3,
                            human_count(r.tokens / r.seconds).c_str());
  if (r.gpus > 1) line += format(", %s a GPU", human_count(r.tokens / r.seconds / r.gpus).c_str());
  if (r.mfu > 0) line += format(" | MFU %.1f%% (full %.1f%%)", r.mfu * 100, r.mfu_full * 100);
  if (r.fp8_overflows > 0) line += format(" | %lld FP8 overflows", (long long)r.fp8_overflows);
  if (r.fp8_underflows > 0) line += format(" | %lld FP8 underflows", (long long)r.fp8_underflows);
  line += format(" | %s | eta %s", human_bytes(r.memory_bytes).c_str(), human_duration(r.eta_seconds).c_str());
  return line;
}

Json step_json(const StepReport& r) {
  Json json = Json::object();
  json.set("step", r.step)
      .set("loss", r.labels ? json_number(r.loss) : Json())
      .set("grad_norm", json_number(r.grad_norm))
      .set("lr", r.learning_rate)
      .set("step_ms", r.seconds * 1e3)
      .set("tokens_per_s", r.tokens / r.seconds)
      .set("tokens", r.all_tokens);
  if (r.mfu > 0) json.set("mfu", r.mfu);
  if (r.fp8_overflows >= 0) json.set("fp8_overflows", r.fp8_overflows).set("fp8_underflows", r.fp8_underflows);
  return json;
}

Console::Console(bool is_leader, bool quiet)
    : is_leader_(is_leader), quiet_(quiet), terminal_(isatty(STDOUT_FILENO) && !getenv("NO_COLOR")) {}

void Console::end_line() {
  if (has_bar_) printf("\033[K");  // the cursor is at the bar's beginning
  else if (in_line_) fputc('\n', is_leader_ ? stdout : stderr);
  has_bar_ = in_line_ = false;
  fflush(stdout);
}

// The console's own colors pass; what others wrote is made printable first.
void Console::print(FILE* file, const std::string& text) {
  if (!is_leader_) return;
  end_line();
  fprintf(file, "%s\n", text.c_str());
  fflush(file);
}

namespace {
// Names in files of strangers may have any bytes.
std::string safe(const std::string& text) { return PrintableText().take(text); }
}  // namespace

void Console::line(const std::string& text) {
  if (!quiet_) print(stdout, safe(text));
}

void Console::item(const char* name, const std::string& text) {
  std::string indented;
  for (char c : safe(text)) indented += c == '\n' ? std::string("\n             ") : std::string(1, c);
  if (!quiet_) print(stdout, format(terminal_ ? "  \033[2m%-10s\033[0m %s" : "  %-10s %s", name, indented.c_str()));
}

void Console::heading(const std::string& text) {
  if (!quiet_) print(stdout, terminal_ ? "\033[1m" + safe(text) + "\033[0m" : safe(text));
}
void Console::result(const std::string& text) { print(stdout, safe(text)); }
void Console::warning(const std::string& text) {
  print(quiet_ ? stderr : stdout, (terminal_ ? "\033[33mwarning:\033[0m " : "warning: ") + safe(text));
}

void Console::piece(const std::string& text) {
  const std::string printable = printable_.take(text);
  if (printable.empty()) return;
  if (has_bar_) end_line();
  in_line_ = printable.back() != '\n';
  if (!is_leader_) return;
  fwrite(printable.data(), 1, printable.size(), stdout);
  fflush(stdout);
}

void Console::progress(const std::string& text, double fraction) {
  line(text);
  if (!is_leader_ || !terminal_ || quiet_) return;
  constexpr int kWidth = 40;
  const int filled = int(fraction * kWidth + 0.5);
  // Moves the cursor back to the bar's beginning, so that an error of the system or of another rank does not follow the
  // bar.
  printf("\033[2m[%s%s] %3.0f%%\033[0m\r", std::string(size_t(filled), '#').c_str(),
         std::string(size_t(kWidth - filled), '.').c_str(), fraction * 100);
  fflush(stdout);
  has_bar_ = true;
}
