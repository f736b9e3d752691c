// Files of llm.c that are given where another file is expected.
#pragma once

#include <string>
#include <string_view>

// Returns what a file is and what to use in its place, by its first 4 bytes: "this is llm.c's tokenizer of GPT-2: …";
// "" if it is none of those that are known.
std::string foreign_file(std::string_view first_bytes);
