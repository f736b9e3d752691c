// UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

inline constexpr char kReplacementCharacter[] = "\xef\xbf\xbd";  // U+FFFD

// What a text that is not empty begins with.
struct Utf8Start {
  enum Kind {
    kCharacter,
    kBroken,     // bytes of no character, as many as Unicode advises to replace together (a "maximal subpart")
    kIncomplete  // all that is left is the beginning of a character
  };
  Kind kind;
  size_t bytes;
};
Utf8Start utf8_start(std::string_view text);

// The last character of a UTF-8 text that is not empty.
std::string_view last_character(std::string_view text);

// The code point of one character, and back.
char32_t code_point(std::string_view character);
void append_utf8(std::string& text, char32_t code_point);

// Unicode's White_Space, which the patterns of tokenizers call \s.
bool is_white_space(char32_t code_point);

bool is_utf8(std::string_view text);

// The text with U+FFFD for what is no UTF-8, a maximal subpart each: Python's bytes.decode("utf-8", errors="replace").
std::string repaired_utf8(std::string_view text);

// The same for a text that comes in pieces, cut anywhere.
class Utf8Repair {
 public:
  // Appends all that is decided; the beginning of a character waits for its rest.
  void take(std::string_view bytes, std::string& repaired);
  void finish(std::string& repaired);  // what waited is broken

 private:
  std::string waiting_;
};
