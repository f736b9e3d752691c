// A folder that --train-data or --val-data names, or a source of a mixture: which of its files are trained on, and
// which are held out.
//
// A file is for training if its name has the word train; else for validation if it has the word val, valid, validation
// or test. A word ends where the letters end: "wiki_val_000.bin" and "test2.txt" have one, "contest.txt" has none.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/options.h"

// Returns the options with the pattern of its files in place of a folder that --train-data or --val-data names. The
// files are shards (*.bin), else texts (*.txt). Shards for training are trained on if there are any, else all files
// that are not for validation. Those for validation are the held-out data, unless --val-data names other data. For
// --val-data these are taken, else all. Throws on a folder that has no such file.
Options with_files_of_folders(Options options);

// Returns sentences for the banner about files of the training data's folders that are not trained on, since their
// names say that they are for validation. `named` has the options before with_files_of_folders(), and `used` those
// after it.
std::vector<std::string> describe_folders(const Options& named, const Options& used);

// Returns a sentence about files of a pattern that are for validation by their names, next to others that are not; ""
// if there are none.
std::string held_out_by_name(const std::string& pattern);
