// Writes a checkpoint of any mesh as a Hugging Face directory, the same that a finished run exports. It takes one
// process and no device.
#pragma once

#include "llmc/base/options.h"
#include "llmc/train/resume.h"

// --consolidate: writes the newest of `resume`'s checkpoints, after it has verified every byte of it. Throws if the
// checkpoint is not intact, or if a file that it would write already exists.
void consolidate(const Options& options, const ResumePoint& resume);
