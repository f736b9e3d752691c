#include "llmc/base/utf8.h"

#include <cstdint>
#include <cstring>

std::string_view last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && ((unsigned char)text[begin] & 0xc0) == 0x80) --begin;
  return text.substr(begin);
}

char32_t code_point(std::string_view character) {
  const auto byte = [&](size_t i) { return char32_t((unsigned char)character[i]); };
  switch (character.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    case 3:
      return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  }
}

void append_utf8(std::string& text, char32_t c) {
  const auto tail = [&](int shift) { text += char(0x80 | (c >> shift & 0x3f)); };
  if (c < 0x80) {
    text += char(c);
  } else if (c < 0x800) {
    text += char(0xc0 | c >> 6), tail(0);
  } else if (c < 0x10000) {
    text += char(0xe0 | c >> 12), tail(6), tail(0);
  } else {
    text += char(0xf0 | c >> 18), tail(12), tail(6), tail(0);
  }
}

namespace {

// Returns the bytes of the longest prefix of `text` that is valid UTF-8. ASCII, the bulk of most texts, is checked
// eight bytes at a time.
size_t valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    while (at + 8 <= text.size() && (std::memcpy(&eight, &text[at], 8), (eight & 0x8080808080808080u) == 0)) at += 8;
    if (at == text.size()) break;
    const Utf8Start start = utf8_start(text.substr(at));
    if (start.kind != Utf8Start::kCharacter) break;
    at += start.bytes;
  }
  return at;
}

}  // namespace

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_utf8(std::string_view text) { return valid_prefix(text) == text.size(); }

std::string repaired_utf8(std::string_view text) {
  Utf8Repair repair;
  std::string repaired;
  repaired.reserve(text.size());
  repair.take(text, repaired);
  repair.finish(repaired);
  return repaired;
}

void Utf8Repair::take(std::string_view bytes, std::string& repaired) {
  if (!waiting_.empty()) {
    waiting_ += bytes;
    bytes = waiting_;
  }
  while (!bytes.empty()) {
    const size_t valid = valid_prefix(bytes);
    repaired += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    const Utf8Start start = utf8_start(bytes);
    if (start.kind == Utf8Start::kIncomplete) break;
    repaired += kReplacementCharacter;
    bytes.remove_prefix(start.bytes);
  }
  waiting_ = std::string(bytes);
}

void Utf8Repair::finish(std::string& repaired) {
  if (!waiting_.empty()) repaired += kReplacementCharacter;
  waiting_.clear();
}
