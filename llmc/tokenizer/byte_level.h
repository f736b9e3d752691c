// GPT-2's alphabet: one visible character for each byte, so that a vocabulary of bytes can be written as text. A space
// is "Ġ" (U+0120), a newline is "Ċ", and most ASCII characters stand for themselves.
#pragma once

#include <string>
#include <string_view>

// Returns the text with one character for each byte.
std::string byte_level(std::string_view bytes);

// Appends the bytes that `token` spells. If a character of the token is outside the alphabet, appends the token
// unchanged.
void append_bytes_of_token(std::string_view token, std::string& bytes);
