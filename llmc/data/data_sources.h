// The sources of a mixture, as --train-data and --val-data name them:
//
//   --train-data 'web=web/*.bin@0.7,code=code/*.bin@0.25,books=books/*.bin@0.05'
//   --val-data 'web=web_val/*.bin,code=code_val/*.bin'
//
// Each is NAME=FILES, and of training data NAME=FILES@SHARE. A name has letters, digits, '_', '-' and '.'. FILES is
// what also names data that is no mixture: a file, a pattern or a folder. A comma outside of braces ends a source; the
// comma of a file name is written "\,". Shares are taken in proportion to their sum: 14, 5 and 1 are 0.7, 0.25 and
// 0.05.
//
// Any other text names data that is no mixture: one that does not begin with NAME=, or that names files as it is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llmc/data/documents.h"
#include "llmc/data/token_dataset.h"

struct NamedSource {
  std::string name;     // "": the data is no mixture
  std::string pattern;  // of its files, or a folder
  std::string share;    // as it is written; "" if there is none
  int64_t weight = 1;   // shares are the weights' shares in their sum
};

// Return the sources in their order; of data that is no mixture one without a name, whose pattern is the whole text.
// Throw on a text that is no list of sources, on a name that occurs twice, and on shares where there should be none, or
// the other way round. Weights are whole numbers without a common divisor.
std::vector<NamedSource> training_sources(const std::string& train_data);
std::vector<NamedSource> held_out_sources(const std::string& val_data);

// Returns the patterns of the sources of either. Does not look at names and shares.
std::vector<std::string> patterns_of(const std::string& data);

// The inverse: returns the text that names these sources.
std::string text_of(const std::vector<NamedSource>& sources);

// A source that is open.
struct DataSource {
  std::string name = "", pattern = "";  // as in NamedSource
  int64_t weight = 1;
  TokenDataset tokens = {};
  bool tokenized = false;                      // it was text, which a tokenizer cut
  std::optional<DocumentRule> documents = {};  // if its rows are packed with several documents
};
using DataSources = std::vector<DataSource>;

int64_t tokens_of(const DataSources& sources);  // of all together
bool have_masks(const DataSources& sources);    // one of them has
// "source web: ", "" if the data is no mixture: how an error about one begins.
std::string error_prefix(const DataSource& source);
