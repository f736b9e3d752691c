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
inline Utf8Start utf8_start(std::string_view text) {
  const auto byte = [&](size_t i) { return (unsigned char)text[i]; };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Utf8Start::kCharacter, 1};
  if (lead < 0xc2 || lead > 0xf4) return {Utf8Start::kBroken, 1};
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  const unsigned char least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Start::kIncomplete, i};
    if (byte(i) < (i == 1 ? least : 0x80) || byte(i) > (i == 1 ? most : 0xbf)) return {Utf8Start::kBroken, i};
  }
  return {Utf8Start::kCharacter, length};
}

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

// The same for a text that arrives in chunks, which may begin and end anywhere.
class Utf8Repair {
 public:
  // Appends all that is decided. An incomplete character at the end waits for its rest.
  void take(std::string_view bytes, std::string& repaired);
  void finish(std::string& repaired);  // replaces an incomplete character that is still waiting

 private:
  std::string waiting_;
};
