// The lines that a run prints for people, and numbers as JSON and people read them.
#pragma once

#include <cstdio>
#include <string>

#include "llmc/base/json.h"
#include "llmc/base/printable.h"

// json_number() returns x, or the string "nan", "inf" or "-inf" if x is not finite, since JSON has no number for it.
// plain_number() returns a text for people, with the same words.
Json json_number(double x);
std::string plain_number(double x);

// Prints lines for people. Colour and a progress bar appear only if standard output is a terminal. Only the first rank
// prints. A quiet console prints no banner and no progress, but results to standard output and warnings to standard
// error.
class Console {
 public:
  explicit Console(bool is_leader, bool quiet = false);

  void line(const std::string& text);
  // "name   text" of the start banner. If the text has several lines, the others are indented below the first.
  void item(const char* name, const std::string& text);
  void heading(const std::string& text);
  void warning(const std::string& text);
  // A line that is the purpose of the program's start. A quiet console prints it, too.
  void result(const std::string& text);
  // A part of a line, for a sample that is printed token by token. It may have any bytes. A quiet console prints it,
  // too.
  void text_part(const std::string& text);
  // Prints a line and below it the bar, which stays until the next line.
  void progress(const std::string& text, double fraction);
  // Ends an unfinished line and removes the bar. Any rank calls it before it reports an error: each rank knows
  // whether the line that the first rank prints is unfinished.
  void end_line();

 private:
  void print(FILE* file, const std::string& text);
  const bool is_leader_, quiet_, terminal_;
  bool has_bar_ = false, in_line_ = false;
  PrintableText printable_;
};
