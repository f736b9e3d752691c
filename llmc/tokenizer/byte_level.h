// GPT-2's alphabet: a visible character for each byte, so that a vocabulary of bytes can be written as text. A space is
// "Ġ" (U+0120), a newline "Ċ"; most of ASCII stands for itself.
#pragma once

#include <string>
#include <string_view>

// The text, a character a byte.
std::string byte_level(std::string_view bytes);

// Appends the bytes that `token` spells. A token with a character outside the alphabet stands for itself.
void append_bytes_of_token(std::string_view token, std::string& bytes);
