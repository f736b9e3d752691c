// The keys of a config.json fall into three groups: keys that the program uses, keys that do not change what it
// computes, and all others. A key of the third group, known or unknown, asks for something that the program does not
// compute, so it passes only with a value that switches it off.
#pragma once

#include "llmc/base/json.h"
#include "llmc/config/family.h"

// Throws if `config`, or its rope_parameters or rope_scaling, has a key that asks this family for something that is not
// computed. The message gives the key's value and says what to do.
void require_known_keys(const Json& config, const Family& family);
