// UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

inline constexpr char kReplacementCharacter[] = "\xef\xbf\xbd";  // U+FFFD

// Describes the beginning of a text that is not empty.
struct Utf8Start {
  enum Kind {
    kCharacter,
    kBroken,     // an invalid sequence, as long as Unicode advises to replace by one U+FFFD ("maximal subpart")
    kIncomplete  // the text ends within a character
  };
  Kind kind;
  size_t bytes;
};
Utf8Start utf8_start(std::string_view text);

// Returns the last character of a UTF-8 text that is not empty.
std::string_view last_character(std::string_view text);

// These convert one character to its code point and back.
char32_t code_point(std::string_view character);
void append_utf8(std::string& text, char32_t code_point);

// Unicode's White_Space property, which the patterns of tokenizers call \s.
bool is_white_space(char32_t code_point);

bool is_utf8(std::string_view text);

// Returns the text with U+FFFD for each maximal subpart that is not UTF-8, as Python's bytes.decode("utf-8",
// errors="replace") does.
std::string repaired_utf8(std::string_view text);

// The same for a text that arrives in pieces, which may be cut anywhere.
class Utf8Repair {
 public:
  // Appends all that is decided. An incomplete character at the end waits for its rest.
  void take(std::string_view bytes, std::string& repaired);
  void finish(std::string& repaired);  // replaces an incomplete character that is still waiting

 private:
  std::string waiting_;
};
