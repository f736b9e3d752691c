// An error message says what was called and with which values, what was expected, and what to do next.
//
//   REQUIRE(NH % NKV == 0, "query heads %d are not a multiple of key/value heads %d", NH, NKV);
//   fail("shard %s: wrong magic %d\n  expected 20240520: is this a .bin file?", path, magic);
//
// Both throw `Error`. main() catches it, prints it once with the rank, and ends every rank with its exit code.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <string>

#include "llmc/base/exit_code.h"

struct Error : std::runtime_error {
  explicit Error(const std::string& text, ExitCode code = ExitCode::wrong_input)
      : std::runtime_error(text), exit_code(code) {}
  ExitCode exit_code;  // with which the program ends
};

inline ExitCode exit_code_of(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return own->exit_code;
  return dynamic_cast<const std::bad_alloc*>(&error) ? ExitCode::does_not_fit : ExitCode::unexpected;
}

// Returns the text that printf would print.
inline std::string format_list(const char* pattern, va_list args) {
  va_list again;
  va_copy(again, args);
  std::string text(size_t(vsnprintf(nullptr, 0, pattern, args)), '\0');
  vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

[[gnu::format(printf, 1, 2)]] inline std::string format(const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  std::string text = format_list(pattern, args);
  va_end(args);
  return text;
}

[[noreturn, gnu::format(printf, 1, 2)]] inline void fail(const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  std::string text = format_list(pattern, args);
  va_end(args);
  throw Error(text);
}

// The same, for an error that ends the program with another exit code than wrong input does.
[[noreturn, gnu::format(printf, 2, 3)]] inline void fail_as(ExitCode code, const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  std::string text = format_list(pattern, args);
  va_end(args);
  throw Error(text, code);
}

#define REQUIRE(condition, ...)          \
  do {                                   \
    if (!(condition)) fail(__VA_ARGS__); \
  } while (0)

// The same for a call of the file system, with the code of errno (code_of_file_error).
#define REQUIRE_FILE(condition, failed, ...)                                             \
  do {                                                                                   \
    if (!(condition)) fail_as(code_of_file_error(errno, ExitCode::failed), __VA_ARGS__); \
  } while (0)
