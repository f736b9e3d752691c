// These functions read the parts of a tokenizer.json so that nothing is silently ignored. Anything that the code does
// not know is an error that names the file, the place in it and what is supported.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "llmc/base/json.h"

// Throws if the object has a key that is not among `known`, unless its value is null.
void only_keys(const Json& part, std::initializer_list<const char*> known);

// Throws because the "type" of `part` is not supported. `supported` lists the types that are, separated by commas.
[[noreturn]] void refuse_type(const Json& part, const char* supported);

// Throws if the file has more steps of one kind than any known tokenizer: `steps` were read before `part`.
void require_few_steps(const Json& part, size_t steps);

// Throws if the value, a part of words, is longer than that of any known tokenizer: work at each byte of a text would
// grow with it.
void require_short(const Json& value);

// Returns what a message shows of a long text: its first 200 bytes.
std::string beginning(std::string_view text);

// Returns the value of `key`, which must be a single character.
std::string one_character(const Json& part, const char* key);
