// Writes a checkpoint of any mesh as a Hugging Face directory, the same that a finished run exports. It takes one
// process and no device.
#pragma once

#include <string>
#include <vector>

#include "llmc/run/resume.h"

// --consolidate: writes the newest of `resume`'s checkpoints, after it has verified every byte of it. It needs nothing
// but the checkpoint. `arguments` are the command line, which may name another --tokenizer. Throws if the checkpoint is
// not intact, or if a file that it would write already exists.
void consolidate(const std::vector<std::string>& arguments, const ResumePoint& resume);
