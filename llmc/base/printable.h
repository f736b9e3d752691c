// Texts of others, made safe for a terminal: names in files of strangers may have any bytes. UTF-8 characters, newlines
// and tabs pass. Each byte that belongs to no character and each control character becomes U+FFFD.
//
// All is inline, so that what reports errors needs no other file.
#pragma once

#include <unistd.h>

#include <string>
#include <string_view>

#include "llmc/base/utf8.h"

// Makes bytes that arrive in chunks printable.
class PrintableText {
 public:
  // Returns all complete characters; an incomplete one waits for its rest.
  std::string take(std::string_view bytes) {
    waiting_ += bytes;
    std::string text;
    std::string_view rest = waiting_;
    while (!rest.empty()) {
      const Utf8Start start = utf8_start(rest);
      if (start.kind == Utf8Start::kIncomplete) break;
      const bool broken = start.kind == Utf8Start::kBroken;
      const std::string_view character = rest.substr(0, broken ? 1 : start.bytes);
      text += broken || controls(character) ? kReplacementCharacter : character;
      rest.remove_prefix(character.size());
    }
    waiting_.erase(0, waiting_.size() - rest.size());
    return text;
  }

 private:
  // True for C0 control characters other than newline and tab, for DEL, and for C1.
  static bool controls(std::string_view character) {
    const auto first = (unsigned char)character[0];
    if (character.size() == 2) return first == 0xc2 && (unsigned char)character[1] < 0xa0;
    return first == 0x7f || (first < 0x20 && first != '\n' && first != '\t');
  }

  std::string waiting_;
};

// Makes a message printable. A message longer than 4000 bytes keeps its first 3000 and its last 1000 bytes.
inline std::string printable_message(const std::string& text) {
  constexpr size_t kBegin = 3000, kEnd = 1000;
  if (text.size() <= kBegin + kEnd) return PrintableText().take(text);
  return PrintableText().take(text.substr(0, kBegin) + " … " + text.substr(text.size() - kEnd));
}

// Prints an error or a warning, made printable, and a line end on standard error. A single write keeps other ranks'
// text from coming between.
inline void print_error(const std::string& text) {
  const std::string whole = printable_message(text) + "\n";
  for (size_t done = 0; done < whole.size();) {
    const ssize_t n = write(STDERR_FILENO, whole.data() + done, whole.size() - done);
    if (n <= 0) return;
    done += size_t(n);
  }
}
