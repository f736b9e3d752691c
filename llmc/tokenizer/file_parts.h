// Reading the parts of a tokenizer.json so that nothing in it is passed over: what a part says and the code does not
// know is an error that names the file, the place in it and what is supported.
#pragma once

#include <initializer_list>
#include <string>

#include "llmc/base/json.h"

// Fails if the object has a key that is not among these, unless its value is null.
void only_keys(const Json& part, std::initializer_list<const char*> known);

// part's "type" is none of those that are supported, listed as a sentence lists them.
[[noreturn]] void refuse_type(const Json& part, const char* supported);

// The value of `key` must be null, false or missing, because the code does not do what it asks for.
void must_be_off(const Json& part, const char* key, const char* why);

// The one character of part's `key`.
std::string one_character(const Json& part, const char* key);
