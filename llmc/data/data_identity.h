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
// Folder names are not included: the data may move.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/data/documents.h"
#include "llmc/data/token_dataset.h"

// Reads at most about 2^25 tokens of each data set, when json() is first called. In a larger data set it reads from at
// most 2^11 places.
class DataIdentity {
 public:
  // Both data sets must outlive this object; `held_out` may be null.
  DataIdentity(const TokenDataset& train, int64_t windows, const TokenDataset* held_out,
               std::optional<DocumentRule> documents = {}, std::optional<DocumentRule> held_out_documents = {})
      : train_(train),
        windows_(windows),
        held_out_(held_out),
        documents_(documents),
        held_out_documents_(held_out_documents) {}
  const Json& json();

 private:
  const TokenDataset& train_;
  const int64_t windows_;
  const TokenDataset* const held_out_;
  const std::optional<DocumentRule> documents_, held_out_documents_;
  Json json_;
};

// Throws if the training data of `is` differs from that of `was`. The message names `checkpoint`, the one to be
// resumed. Returns a sentence if the held-out data differs.
std::vector<std::string> changed_data(const std::string& checkpoint, const Json& was, const Json& is);
