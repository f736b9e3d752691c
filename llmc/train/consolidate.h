// A checkpoint of any mesh as a Hugging Face directory, by one process and without a device: what a finished run
// exports.
#pragma once

#include "llmc/base/options.h"
#include "llmc/train/resume.h"

// --consolidate: the newest of `resume`'s checkpoints, of which every byte is looked at. Throws if it is not intact,
// and if a file that it would write is there already.
void consolidate(const Options& options, const ResumePoint& resume);
