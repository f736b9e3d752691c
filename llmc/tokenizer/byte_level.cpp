#include "llmc/tokenizer/byte_level.h"

#include <array>

#include "llmc/base/utf8.h"

namespace {

constexpr int kCharacters = 0x100 + 68;  // the characters up to U+00FF, then those of the 68 invisible bytes

struct Alphabet {
  std::array<std::string, 256> character_of;
  std::array<int, kCharacters> byte_of;  // -1: the character is not in the alphabet

  Alphabet() {
    byte_of.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
      const int character = visible ? byte : next++;
      append_utf8(character_of[size_t(byte)], char32_t(character));
      byte_of[size_t(character)] = byte;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet made;
  return made;
}

}  // namespace

std::string byte_level(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (char byte : bytes) text += alphabet().character_of[(unsigned char)byte];
  return text;
}

void append_bytes_of_token(std::string_view token, std::string& bytes) {
  const size_t before = bytes.size();
  for (std::string_view rest = token; !rest.empty();) {
    const std::string_view character = rest.substr(0, utf8_start(rest).bytes);
    const char32_t c = code_point(character);
    const int byte = c < kCharacters ? alphabet().byte_of[c] : -1;
    if (byte < 0) {
      bytes.resize(before);
      bytes += token;
      return;
    }
    bytes += char(byte);
    rest.remove_prefix(character.size());
  }
}
