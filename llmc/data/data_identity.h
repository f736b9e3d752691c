// Identifies the data that a run trains on and is measured with. Checkpoints store this, so that a resume notices other
// data with the same number of tokens.
//
//   {"train": {…}, "held_out": {…} or null}, each with
//   files, windows        how many; windows is 0 for held-out data, of which a part is measured
//   sizes                 checksum of the files' numbers of tokens
//   contents, masks       checksums of the tokens and of the masks' bytes (null without masks): of all tokens if there
//                         are at most 2^25, else of chunks that are spread over the files
//   listed                checksum of the sha256 in the manifest.json of dev/data; null if a file is not listed, or if
//                         there are at most 2^25 tokens
//   documents             the rule of the documents with which rows are packed (documents.h); null if they are not
//   shards                name, tokens, contents and masks of each file, if there are at most 64: for messages and for
//                         readers
//
// A mixture has {"sources": [{"name": "web", "weight": 14, …}, …]} in place of these keys, with them in each; held-out
// data has no weights (NamedSource).
//
// Folder names are not included: the data may move.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/data/data_sources.h"

// Reads at most about 2^25 tokens of each data set, when json() is first called. In a larger data set it reads from at
// most 2^11 places.
class DataIdentity {
 public:
  // Both must outlive this object; `held_out` may be empty. An epoch of each training source has so many `windows`.
  DataIdentity(const DataSources& train, std::vector<int64_t> windows, const DataSources& held_out)
      : train_(train), held_out_(held_out), windows_(std::move(windows)) {}
  const Json& json();

 private:
  const DataSources &train_, &held_out_;
  const std::vector<int64_t> windows_;
  Json json_;
};

// Returns the identity of one source in the data `is`, "train" or "held_out"; null if there is none of that name.
const Json* source_identity(const Json& is, const std::string& name);

// Throws if the training data of `is` differs from that of `was`. The message names `checkpoint`, the one to be
// resumed. Returns a sentence if the held-out data differs.
std::vector<std::string> changed_data(const std::string& checkpoint, const Json& was, const Json& is);
