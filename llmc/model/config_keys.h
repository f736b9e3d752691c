// The keys of a Llama's config.json, in three lists: those that the program uses, those that change nothing that it
// computes, and the rest. A key of the rest, known or not, asks for what the program does not compute: it passes only
// with a value that switches it off.
#pragma once

#include "llmc/base/json.h"

// Throws on a key that asks for what is not computed, in `config` or in its rope_parameters or rope_scaling, with its
// value and the way out.
void require_known_keys(const Json& config);
