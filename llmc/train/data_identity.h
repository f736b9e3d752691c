// Which data a run trains on and is measured with, as its checkpoints say it: so a resume notices other data of as many
// tokens.
//
//   {"train": {…}, "held_out": {…} or null}, each of
//   files, windows        how many; windows is 0 for held-out data, of which a part is measured
//   sizes                 checksum of the files' numbers of tokens
//   contents, masks       checksums of the tokens, and of what the masks say (null without masks): of all tokens up to
//                         2^25 of them, else of pieces that are spread over the files
//   listed                checksum of the sha256 in the manifest.json of dev/data; null where a file is not listed
//   shards                name, tokens, contents and masks of each file, if they are few: for messages and readers
//
// Folders play no part: the data may move.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/train/token_dataset.h"

// Reads at most some 2^25 tokens of each data set, from at most 2^11 places of one that has more, when it is first
// asked for.
class DataIdentity {
 public:
  // Both data sets outlive it; held_out may be null.
  DataIdentity(const TokenDataset& train, int64_t windows, const TokenDataset* held_out)
      : train_(train), windows_(windows), held_out_(held_out) {}
  const Json& json();

 private:
  const TokenDataset& train_;
  const int64_t windows_;
  const TokenDataset* const held_out_;
  Json json_;
};

// Throws if the training data of `is` is not what it was: `checkpoint` is what was to be resumed. Returns a sentence if
// the held-out data is another.
std::vector<std::string> changed_data(const std::string& checkpoint, const Json& was, const Json& is);
