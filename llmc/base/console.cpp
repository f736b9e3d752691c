#include "llmc/base/console.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>

#include "llmc/base/error.h"

std::string plain_number(double x) { return std::isnan(x) ? "nan" : format("%g", x); }
Json json_number(double x) { return std::isfinite(x) ? Json(x) : Json(plain_number(x)); }

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

void Console::text_part(const std::string& text) {
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
