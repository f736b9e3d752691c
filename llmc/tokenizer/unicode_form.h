// Unicode's normalization forms and lowercase letters. The library utf8proc knows the characters.
#pragma once

#include <string>

#include "llmc/tokenizer/pattern.h"

// NFC composes: "e" + U+0301 becomes U+00E9. NFD decomposes. The K forms also replace a character by those that it is
// compatible with: U+FB01 becomes "fi".
enum class UnicodeForm { kNFC, kNFD, kNFKC, kNFKD };

// Changes a UTF-8 text to the form. A substring without ASCII takes 4 bytes of memory for each decomposed character,
// and n marks in a row take O(n log n) steps. Throws with `name` if the text, decomposed, grows by more than `scratch`
// has left.
void to_form(UnicodeForm form, std::string& text, PatternScratch& scratch, const std::string& name);

// Changes each character to lowercase, whatever is next to it: a sigma at the end of a word becomes U+03C3.
void to_lowercase(std::string& text, PatternScratch& scratch, const std::string& name);

// Returns the version of Unicode that these functions follow, as "15.0.0".
std::string unicode_form_version();
